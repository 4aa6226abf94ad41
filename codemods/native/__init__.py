"""Training loops: found, checked against the rules of soundness, and turned into native AMP, each as a whole."""
