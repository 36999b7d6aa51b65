"""diffusers: the network that denoises is compiled; the pipeline around it stays."""

import torch
from diffusers import DDIMScheduler, DDPMPipeline, UNet2DModel

torch.manual_seed(0)
blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D")}
blocks |= {"up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
unet = UNet2DModel(16, 3, 3, block_out_channels=(32, 64), norm_num_groups=8, **blocks).eval()
pipeline = DDPMPipeline(unet, DDIMScheduler())
pipeline.set_progress_bar_config(disable=True)


def image():
    seed = torch.Generator().manual_seed(1)
    return torch.from_numpy(
        pipeline(generator=seed, num_inference_steps=3, output_type="np").images
    )


eager = image()
pipeline.unet.compile(backend="litz")
assert torch.allclose(image(), eager, atol=1e-4), (image() - eager).abs().max()
