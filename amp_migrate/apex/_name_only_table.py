"""What Apex has and the drop-in doesn't: module by module the names, and package by package what to use instead.

Source: the module tree of Apex in 2025, and of 2022 for pyprof. Parents come before their submodules.
"""

from __future__ import annotations

#: package, below apex → what to do
ADVICE = {
    "contrib.bottleneck": "Use torchvision's Bottleneck with nn.BatchNorm2d in eval mode, or train it unfused.",
    "contrib.conv_bias_relu": "Use nn.Conv2d and F.relu; torch.compile fuses them.",
    "contrib.cudnn_gbn": "Use apex.parallel.SyncBatchNorm or nn.SyncBatchNorm, with channels_last tensors.",
    "contrib.fmha": "Use torch.nn.functional.scaled_dot_product_attention.",
    "contrib.gpu_direct_storage": "Use torch.save and torch.load, or torch.cuda.gds where torch has it.",
    "contrib.groupbn": "Use apex.parallel.SyncBatchNorm or nn.SyncBatchNorm, with channels_last tensors.",
    "contrib.index_mul_2d": "Use in1[idx] * in2.",
    "contrib.multihead_attn": "Use nn.MultiheadAttention or torch.nn.functional.scaled_dot_product_attention.",
    "contrib.nccl_allocator": "Use torch.cuda.MemPool with torch.distributed's own allocator.",
    "contrib.nccl_p2p": "Use torch.distributed.batch_isend_irecv.",
    "contrib.openfold_triton": "Use nn.LayerNorm and torch.nn.functional.scaled_dot_product_attention.",
    "contrib.peer_memory": "Use torch.distributed.batch_isend_irecv for the halos.",
    "contrib.sparsity": "Use torch.ao.pruning.WeightNormSparsifier (2:4) or torch.sparse.to_sparse_semi_structured.",
    "contrib.torchsched": "Use torch.compile with its own backend.",
    "contrib.transducer": "Use torchaudio.functional.rnnt_loss.",
    "pyprof": "Use torch.profiler, or torch.autograd.profiler.emit_nvtx() under Nsight.",
    "transformer": "Use Megatron-core, which took over its development, or torch.distributed.tensor.parallel.",
}

#: module, below apex → its names
NAMES = {
    "contrib.bottleneck": "Bottleneck SpatialBottleneck HaloExchangerNoComm HaloExchangerAllGather "
    "HaloExchangerSendRecv HaloExchangerPeer",
    "contrib.bottleneck.bottleneck": "Bottleneck SpatialBottleneck FrozenBatchNorm2d BottleneckFunction "
    "SpatialBottleneckFunction bottleneck_function spatial_bottleneck_function conv1x1 conv3x3",
    "contrib.bottleneck.halo_exchangers": "HaloExchanger HaloExchangerNoComm HaloExchangerAllGather "
    "HaloExchangerSendRecv HaloExchangerPeer HaloPadder",
    "contrib.conv_bias_relu": "ConvBiasReLU ConvBias ConvBiasMaskReLU ConvFrozenScaleBiasReLU",
    "contrib.conv_bias_relu.conv_bias_relu": "ConvBiasReLU ConvBias ConvBiasMaskReLU ConvFrozenScaleBiasReLU "
    "ConvBiasReLU_ ConvBias_ ConvBiasMaskReLU_ ConvFrozenScaleBiasReLU_",
    "contrib.cudnn_gbn": "GroupBatchNorm2d",
    "contrib.cudnn_gbn.batch_norm": "GroupBatchNorm2d _GroupBatchNorm2d",
    "contrib.fmha": "FMHAFun",
    "contrib.fmha.fmha": "FMHAFun FMHA",
    "contrib.gpu_direct_storage": "GDSFile",
    "contrib.groupbn": "BatchNorm2d_NHWC",
    "contrib.groupbn.batch_norm": "BatchNorm2d_NHWC bn_NHWC_impl bn_addrelu_NHWC_impl",
    "contrib.index_mul_2d": "index_mul_2d",
    "contrib.index_mul_2d.index_mul_2d": "IndexMul2d_ IndexMul2dBackward_ index_mul_2d index_mul_2d_backward",
    "contrib.multihead_attn": "SelfMultiheadAttn EncdecMultiheadAttn fast_mask_softmax_dropout_func",
    "contrib.multihead_attn.self_multihead_attn": "SelfMultiheadAttn",
    "contrib.multihead_attn.encdec_multihead_attn": "EncdecMultiheadAttn",
    "contrib.multihead_attn.mask_softmax_dropout_func": "MaskSoftmaxDropout fast_mask_softmax_dropout_func",
    "contrib.multihead_attn.self_multihead_attn_func": "SelfAttnFunc self_attn_func",
    "contrib.multihead_attn.encdec_multihead_attn_func": "EncdecAttnFunc encdec_attn_func",
    "contrib.multihead_attn.fast_self_multihead_attn_func": "FastSelfAttnFunc fast_self_attn_func",
    "contrib.multihead_attn.fast_self_multihead_attn_norm_add_func": "FastSelfAttnNormAddFunc "
    "fast_self_attn_norm_add_func",
    "contrib.multihead_attn.fast_encdec_multihead_attn_func": "FastEncdecAttnFunc fast_encdec_attn_func",
    "contrib.multihead_attn.fast_encdec_multihead_attn_norm_add_func": "FastEncdecAttnNormAddFunc "
    "fast_encdec_attn_norm_add_func",
    "contrib.nccl_allocator": "init nccl_mem create_nccl_mem_pool",
    "contrib.nccl_allocator.nccl_allocator": "init nccl_mem create_nccl_mem_pool",
    "contrib.nccl_p2p": "get_unique_nccl_id init_nccl_comm left_right_halo_exchange left_right_halo_exchange_inplace "
    "add_delay",
    "contrib.openfold_triton": "LayerNormSmallShapeOptImpl sync_triton_auto_tune_cache_across_gpus CanSchTriMHA "
    "AttnTri AttnBiasJIT AttnNoBiasJIT",
    "contrib.openfold_triton.layer_norm": "LayerNormSmallShapeOptImpl",
    "contrib.openfold_triton.mha": "CanSchTriMHA AttnTri AttnBiasJIT AttnNoBiasJIT is_enabled enable disable "
    "schedule_triton_mha FusedAttenionCoreFunc",
    "contrib.openfold_triton.fused_adam_swa": "AdamMathType FusedAdamSWA",
    "contrib.peer_memory": "PeerMemoryPool PeerHaloExchanger1d",
    "contrib.peer_memory.peer_memory": "PeerMemoryPool",
    "contrib.peer_memory.peer_halo_exchanger_1d": "PeerHaloExchanger1d",
    "contrib.sparsity": "ASP create_mask",
    "contrib.sparsity.asp": "ASP eligible_modules",
    "contrib.sparsity.sparse_masklib": "create_mask m4n2_1d m4n2_2d_best m4n2_2d_greedy mn_1d_best mn_2d_best "
    "mn_2d_greedy compute_valid_1d_patterns compute_valid_2d_patterns reshape_1d fill",
    "contrib.sparsity.permutation_lib": "Permutation",
    "contrib.torchsched": "get_backend set_default_backend torchsched torchsched_compile",
    "contrib.torchsched.backend": "get_backend",
    "contrib.transducer": "TransducerJoint TransducerLoss",
    "contrib.transducer.transducer": "TransducerJoint TransducerLoss TransducerJointFunc TransducerLossFunc",
    "contrib.transducer._transducer_ref": "transducer_loss_reference transducer_joint_reference",
    "pyprof": "",
    "pyprof.nvtx": "init wrap",
    "pyprof.nvtx.nvmarker": "init add_wrapper",
    "pyprof.parse": "",
    "pyprof.prof": "",
    "transformer": "",
    "transformer.amp": "GradScaler",
    "transformer.amp.grad_scaler": "GradScaler",
    "transformer.functional": "FusedScaleMaskSoftmax fused_apply_rotary_pos_emb fused_apply_rotary_pos_emb_cached "
    "fused_apply_rotary_pos_emb_thd fused_apply_rotary_pos_emb_2d",
    "transformer.functional.fused_softmax": "FusedScaleMaskSoftmax GenericFusedScaleMaskSoftmax "
    "ScaledUpperTriangMaskedSoftmax ScaledMaskedSoftmax GenericScaledMaskedSoftmax ScaledSoftmax "
    "scaled_upper_triang_masked_softmax scaled_masked_softmax generic_scaled_masked_softmax",
    "transformer.functional.fused_rope": "FusedRoPEFunc FusedRoPECachedFunc FusedRoPETHDFunc FusedRoPE2DFunc "
    "fused_apply_rotary_pos_emb fused_apply_rotary_pos_emb_cached fused_apply_rotary_pos_emb_thd "
    "fused_apply_rotary_pos_emb_2d",
    "transformer.layers": "FastLayerNorm FusedLayerNorm MixedFusedLayerNorm",
    "transformer.layers.layer_norm": "FastLayerNorm FusedLayerNorm MixedFusedLayerNorm",
    "transformer.log_util": "get_transformer_logger set_logging_level",
    "transformer.microbatches": "build_num_microbatches_calculator NumMicroBatchesCalculator ConstantNumMicroBatches "
    "RampupBatchsizeNumMicroBatches",
    "transformer.parallel_state": "is_unitialized initialize_model_parallel model_parallel_is_initialized "
    "destroy_model_parallel get_rank_info get_model_parallel_group get_tensor_model_parallel_group "
    "get_pipeline_model_parallel_group get_data_parallel_group get_amax_reduction_group get_embedding_group "
    "get_position_embedding_group get_encoder_relative_position_embedding_group "
    "get_decoder_relative_position_embedding_group is_rank_in_embedding_group is_rank_in_position_embedding_group "
    "is_rank_in_encoder_relative_position_embedding_group is_rank_in_decoder_relative_position_embedding_group "
    "is_pipeline_stage_before_split is_pipeline_stage_after_split is_pipeline_stage_at_split "
    "is_pipeline_first_stage is_pipeline_last_stage set_tensor_model_parallel_world_size "
    "set_pipeline_model_parallel_world_size get_tensor_model_parallel_world_size "
    "get_pipeline_model_parallel_world_size set_tensor_model_parallel_rank set_pipeline_model_parallel_rank "
    "get_tensor_model_parallel_rank get_pipeline_model_parallel_rank get_pipeline_model_parallel_split_rank "
    "set_pipeline_model_parallel_split_rank get_virtual_pipeline_model_parallel_rank "
    "set_virtual_pipeline_model_parallel_rank get_virtual_pipeline_model_parallel_world_size "
    "set_virtual_pipeline_model_parallel_world_size get_tensor_model_parallel_src_rank get_data_parallel_src_rank "
    "get_pipeline_model_parallel_first_rank get_pipeline_model_parallel_last_rank "
    "get_pipeline_model_parallel_next_rank get_pipeline_model_parallel_prev_rank get_data_parallel_world_size "
    "get_data_parallel_rank new_process_group",
    "transformer.pipeline_parallel": "get_forward_backward_func build_model",
    "transformer.pipeline_parallel.schedules": "get_forward_backward_func",
    "transformer.pipeline_parallel.schedules.common": "build_model free_output_tensor custom_backward forward_step "
    "backward_step",
    "transformer.pipeline_parallel.schedules.fwd_bwd_no_pipelining": "forward_backward_no_pipelining",
    "transformer.pipeline_parallel.schedules.fwd_bwd_pipelining_with_interleaving": ""
    "_forward_backward_pipelining_with_interleaving",
    "transformer.pipeline_parallel.schedules.fwd_bwd_pipelining_without_interleaving": ""
    "forward_backward_pipelining_without_interleaving",
    "transformer.pipeline_parallel.p2p_communication": "recv_forward recv_backward send_forward send_backward "
    "send_forward_recv_backward send_backward_recv_forward send_forward_recv_forward send_backward_recv_backward "
    "send_forward_backward_recv_forward_backward FutureTensor",
    "transformer.pipeline_parallel.utils": "listify_model setup_microbatch_calculator get_micro_batch_size "
    "get_num_microbatches get_current_global_batch_size get_kth_microbatch get_autoresume get_timers print_rank_0 "
    "is_last_rank print_rank_last param_is_not_shared unwrap_model get_model_type calc_params_l2_norm "
    "average_losses_across_data_parallel_group report_memory print_params_min_max_norm "
    "get_ltor_masks_and_position_ids _reconfigure_microbatch_calculator",
    "transformer.tensor_parallel": "vocab_parallel_cross_entropy broadcast_data ColumnParallelLinear RowParallelLinear "
    "VocabParallelEmbedding set_tensor_model_parallel_attributes "
    "set_defaults_if_not_set_tensor_model_parallel_attributes copy_tensor_model_parallel_attributes "
    "copy_to_tensor_model_parallel_region gather_from_tensor_model_parallel_region "
    "reduce_from_tensor_model_parallel_region scatter_to_tensor_model_parallel_region "
    "scatter_to_sequence_parallel_region checkpoint get_cuda_rng_tracker init_checkpointed_activations_memory_buffer "
    "model_parallel_cuda_manual_seed reset_checkpointed_activations_memory_buffer split_tensor_along_last_dim",
    "transformer.tensor_parallel.cross_entropy": "vocab_parallel_cross_entropy",
    "transformer.tensor_parallel.data": "broadcast_data",
    "transformer.tensor_parallel.layers": "ColumnParallelLinear RowParallelLinear VocabParallelEmbedding "
    "LinearWithGradAccumulationAndAsyncCommunication linear_with_grad_accumulation_and_async_allreduce "
    "param_is_not_tensor_parallel_duplicate set_tensor_model_parallel_attributes "
    "set_defaults_if_not_set_tensor_model_parallel_attributes copy_tensor_model_parallel_attributes",
    "transformer.tensor_parallel.mappings": "copy_to_tensor_model_parallel_region "
    "gather_from_tensor_model_parallel_region reduce_from_tensor_model_parallel_region "
    "scatter_to_tensor_model_parallel_region scatter_to_sequence_parallel_region "
    "gather_from_sequence_parallel_region reduce_scatter_to_sequence_parallel_region",
    "transformer.tensor_parallel.memory": "allocate_mem_buff get_mem_buff MemoryBuffer RingMemBuffer",
    "transformer.tensor_parallel.random": "checkpoint get_cuda_rng_tracker CudaRNGStatesTracker CheckpointFunction "
    "init_checkpointed_activations_memory_buffer model_parallel_cuda_manual_seed "
    "reset_checkpointed_activations_memory_buffer",
    "transformer.tensor_parallel.utils": "split_tensor_along_last_dim VocabUtility",
    "transformer.utils": "ensure_divisibility divide split_tensor_into_1d_equal_chunks gather_split_1d_tensor",
}
