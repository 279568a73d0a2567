"""The languages of a tokenizer for translation, and their tokens."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from attnkit.errors import UsageError
from attnkit.tokenizers.files import TokenizerFolder
from attnkit.tokenizers.tokens import Languages, Tokenizer, Tokens

FEW, ALIKE = 6, 0.5  # languages that an error lists, and how much of their letters are those of an unknown one


class LanguageRules(NamedTuple):
    """How the tokenizer of a class spells languages, and where it puts them."""

    pattern: re.Pattern[str]
    usual: str
    follows: bool = False
    starts: bool = False


COUNTRY = re.compile(r"([a-z]{2}_[A-Z]{2})")
RULES = {
    "MBartTokenizer": LanguageRules(COUNTRY, "en_XX", follows=True, starts=True),
    "MBart50Tokenizer": LanguageRules(COUNTRY, "en_XX"),
    "M2M100Tokenizer": LanguageRules(re.compile(r"__([a-z]{2,3})__"), "en"),
    "NllbTokenizer": LanguageRules(re.compile(r"([a-z]{3}_[A-Z][a-z]{3})"), "eng_Latn"),
}
WITHOUT_VOCABULARY = {"M2M100Tokenizer": "NllbTokenizer"}  # the usual class of a folder with vocab.json, and without
# languages in the order of their ids, for folders that number them only by this order
OF_MBART = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX "
    "ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
)
ADDED_IN_50 = (
    "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN "
    "te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)
OF_M2M_100 = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy "
    "id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru "
    "sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
)
OF_WMT21 = "en ha is ja cs ru zh de"
MBART, MBART_50 = OF_MBART.split(), [*OF_MBART.split(), *ADDED_IN_50.split()]
M2M_100 = {"m2m100": OF_M2M_100.split(), "wmt21": OF_WMT21.split()}  # by language_codes


def with_languages(tokenizer: Tokenizer, folder: TokenizerFolder) -> Tokenizer:
    """The tokenizer of a folder with its languages, if it is one for translation.

    DataError for a language that the folder states and the vocabulary lacks.
    """
    usual = folder.usual_class
    usual = usual if folder.vocabulary_file else WITHOUT_VOCABULARY.get(usual, usual)
    rules = RULES.get(folder.tokenizer_class or usual)
    end = tokenizer.special.get("eos")
    if rules is None or end is None:
        return tokenizer
    matches = ((rules.pattern.fullmatch(token), id) for id, token in enumerate(tokenizer.vocabulary))
    ids = {match[1]: id for match, id in matches if match}
    if not ids:
        return tokenizer
    source, target = (folder.settings.get(key) or "" for key in ("src_lang", "tgt_lang"))
    for language in (source, target):
        if language and (not isinstance(language, str) or language not in ids):
            raise folder.error(f"{str(language)[:40]!r} is no language of the vocabulary")
    follows = rules.follows or folder.get_bool("legacy_behaviour", False) is True
    usual = rules.usual if rules.usual in ids else next(iter(ids))
    languages = Languages(ids, end, follows, rules.starts, source, target, usual)
    hidden, decode = {*ids.values()}, tokenizer.decode

    def decode_words(kept: Sequence[int], with_special: bool = False) -> str:
        shown = [id for id in kept if with_special or id not in hidden]
        return decode(shown, **{"with_special": True} if with_special else {}) if decode else ""

    return replace(tokenizer, decode=decode_words if decode else None, languages=languages, locate=None, truncate=None)


def find_language(languages: Languages, language: str, flag: str = "") -> int:
    """The token of a language. UsageError, by `flag`, lists some others.

    >>> find_language(Languages({"fr": 7, "en": 8}, end=2), "en")
    8
    """
    known = languages.ids
    if language not in known:
        near = difflib.get_close_matches(language, known, FEW, ALIKE) or [*known][:FEW]
        more = f" … ({len(known)} in all)" if len(known) > len(near) else ""
        raise UsageError(f"the model has no language {language!r} (expected one of {', '.join(near)}{more})", flag)
    return known[language]


def speak(tokenizer: Tokenizer, language: str | None, side: str) -> Tokenizer:
    """The tokenizer for texts of one language.

    language  None: that of the folder, else the usual one of a source, and none of a target
    side      "source" or "target" of a translation

    UsageError for a language that the tokenizer does not have.
    """
    flag, languages, is_target = f"--{side}-language", tokenizer.languages, side == "target"
    if languages is None:
        if language is not None:
            raise UsageError("the tokenizer has no languages", flag)
        return tokenizer
    language = language or (languages.target if is_target else languages.source or languages.usual)
    ids = [find_language(languages, language, flag)] if language else []
    before = [] if languages.starts or (languages.follows and not is_target) else ids
    after = [languages.end, *(ids if languages.follows and not is_target else [])]

    def encode(
        text: str,
        known: Sequence[str] = (),
        pair: str | None = None,
        with_special: bool = True,
        plain: bool = False,
    ) -> Tokens:
        if pair is not None:
            raise UsageError("a tokenizer for translation takes one text, not a pair")
        inner = tokenizer.encode(text, known, with_special=False, **{"plain": True} if plain else {})
        if not with_special:
            return inner
        words = tokenizer.vocabulary
        return Tokens(
            [*(words[id] for id in before), *inner.spellings, *(words[id] for id in after)],
            [*before, *(inner.ids or []), *after],
        )

    return replace(tokenizer, encode=encode, languages=None)
