"""Where the data of each benchmark is found."""

from __future__ import annotations

SOURCES = {
    "chartqa": "https://huggingface.co/datasets/lmms-lab/ChartQA or vis-nlp/ChartQA on GitHub",
    "docvqa": "https://huggingface.co/datasets/lmms-lab/DocVQA or https://rrc.cvc.uab.es/?ch=17",
    "llava_description": "detail_1k.json, linked from https://github.com/THU-MIG/PrefixKV, and "
    "the images of COCO train2017",
    "llava_instruct": "llava_v1_5_mix665k.json of "
    "https://huggingface.co/datasets/liuhaotian/LLaVA-Instruct-150K, and its images",
    "longbench": "data.zip of https://huggingface.co/datasets/THUDM/LongBench, and "
    "LongBench/config of https://github.com/THUDM/LongBench",
    "loogle": "https://huggingface.co/datasets/bigai-nlco/LooGLE, and config/ of "
    "https://github.com/bigai-nlco/LooGLE, whose LooGLE-testdata/ also says the kinds of questions",
    "mathvista": "https://huggingface.co/datasets/AI4Math/MathVista or lupantech/MathVista on "
    "GitHub",
    "milebench": "https://huggingface.co/datasets/FreedomIntelligence/MileBench",
    "mm_vet": "mm-vet.zip, from https://github.com/yuweihao/MM-Vet",
    "needle": "a long text: https://github.com/gkamradt/LLMTest_NeedleInAHaystack",
    "ocrbench": "https://huggingface.co/datasets/echo840/OCRBench or "
    "https://github.com/Yuliang-Liu/MultimodalOCR",
    "screenspot_v2": "https://huggingface.co/datasets/OS-Copilot/ScreenSpot-v2 or "
    "https://huggingface.co/datasets/lmms-lab/ScreenSpot-v2",
    "textcaps": "https://huggingface.co/datasets/lmms-lab/TextCaps or "
    "https://textvqa.org/textcaps/dataset",
    "textvqa": "https://huggingface.co/datasets/lmms-lab/textvqa or https://textvqa.org/dataset",
}


def where_data(folder: str) -> str:
    """A benchmark's folder in the data folder, and where what is in it is found."""
    return f"{folder}/: {SOURCES[folder]}"
