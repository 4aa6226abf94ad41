"""Folders of ``torch.distributed.checkpoint``: converted without executing anything of them."""
