"""Encoder-decoders: the image goes to the encoder, so that only refusing them is of interest."""

from __future__ import annotations

import torch

from . import media
from .media import Media
from .sizes import AFTER, BEFORE, HIDDEN, SIDE
from .specimen import Entry, Inputs

_ALONE = "it is an encoder-decoder that is asked with an image alone, without a prompt"


def boxed(inputs: Inputs) -> Inputs:
    """UDOP: each token has a box on the page, one behind the other."""
    steps = inputs["attention_mask"].cumsum(-1) / 200
    return inputs | {"bbox": torch.stack([steps, steps, steps + 0.1, steps + 0.1], dim=-1)}


_BART = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}

ENTRIES: dict[str, Entry] = {
    "florence2": Entry(
        overrides={
            "text_config": _BART,
            "vision_config": {
                "depths": [1, 1],
                "patch_size": [7, 3],
                "patch_stride": [4, 2],
                "patch_padding": [3, 1],
                "patch_prenorm": [False, True],
                "embed_dim": [16, 32],
                "num_heads": [2, 2],
                "num_groups": [2, 2],
                "window_size": 4,
                "projection_dim": HIDDEN,
            },
        },
        image=media.plain(10),
        images=1,
    ),
    "pix2struct": Entry(reason=_ALONE),
    "pp_formulanet": Entry(reason=_ALONE),
    "t5gemma2": Entry(
        overrides={"encoder": {"mm_tokens_per_image": 9}, "decoder": {"bos_token_id": 1}},
        image=media.plain(9, before=(BEFORE,), after=(AFTER,)),
    ),
    "udop": Entry(
        overrides={
            "d_model": HIDDEN,
            "d_kv": 16,
            "d_ff": 96,
            "num_heads": 4,
            "num_layers": 2,
            "num_decoder_layers": 2,
            "image_size": SIDE,
            "patch_size": 4,
            "decoder_start_token_id": 1,
        },
        image=Media(media.square(), lambda _picture: ()),
        images=1,
        extend=boxed,
    ),
    "vision-encoder-decoder": Entry(reason=_ALONE),
}
