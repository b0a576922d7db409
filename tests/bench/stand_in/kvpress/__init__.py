"""Stands in for kvpress: presses that keep the latest share of every layer."""

from contextlib import contextmanager

import torch


class KnormPress:
    """Drops a share of the prompt's pairs after its prefill."""

    def __init__(self, compression_ratio):
        self.keep = 1 - compression_ratio

    @contextmanager
    def __call__(self, model):
        def crop(module, args, kwargs, output):
            for layer in (kwargs.get("cache") or kwargs["past_key_values"]).layers:
                n = round(self.keep * layer.keys.shape[2])
                layer.keys, layer.values = layer.keys[:, :, -n:], layer.values[:, :, -n:]

        hook = model.register_forward_hook(crop, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()


class SnapKVPress:
    """What the next one is made of."""

    def __init__(self, compression_ratio):
        pass


class AdaKVPress:
    """Hides one pair of a layer, and leaves it hidden."""

    def __init__(self, press):
        pass

    @contextmanager
    def __call__(self, model):
        model.model.layers[0].self_attn.masked_key_indices = (torch.zeros(1, dtype=torch.long),) * 3
        yield


class FinchPress(KnormPress):
    """Wants to be told the question's length."""

    window_size = delimiter_token_id = None

    def __call__(self, model):
        if self.window_size is None:
            raise ValueError("window_size must be provided")
        return super().__call__(model)


class ThinKPress:
    """Is given a share of the channels."""

    def __init__(self, key_channel_compression_ratio):
        self.share = key_channel_compression_ratio


class ComposedPress(KnormPress):
    """Keeps the latest tenth for each press that it is made of."""

    def __init__(self, presses):
        super().__init__(1 - len(presses) / 10)
