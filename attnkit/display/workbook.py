"""A workbook of cells with formulas as an XLSX file.

The format is that of ECMA-376, without macros and links: a ZIP archive of XML with the sheets, their names and a few
styles.
"""

import io
import math
import re
import zipfile
from collections.abc import Sequence
from typing import Literal, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from attnkit.errors import escaped, shortened

Look = Literal["number", "given", "title", "label", "note"]
LOOKS: tuple[Look, ...] = ("number", "given", "title", "label", "note")
INFINITY = 1e300  # what a cell holds for ∞, which no cell can: adding a score changes no digit of it
NAME_LENGTH = 31  # of a sheet
MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
SHEET_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml"
HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
NEW_YEAR_1980 = (1980, 1, 1, 0, 0, 0)
NUMBER = '[<-1000000000000000]"−∞";[>1000000000000000]"∞";0.0000'  # how a spreadsheet shows numbers
# a style for each of LOOKS
STYLES = f"""{HEAD}<styleSheet xmlns="{MAIN}">
<numFmts count="1"><numFmt numFmtId="164" formatCode={quoteattr(NUMBER)}/></numFmts>
<fonts count="4"><font><sz val="11"/><name val="Calibri"/></font><font><sz val="11"/><color rgb="FF1F4E9E"/><name val="Calibri"/></font><font><b/><sz val="11"/><name val="Calibri"/></font><font><sz val="11"/><color rgb="FF5C636E"/><name val="Calibri"/></font></fonts>
<fills count="2"><fill><patternFill patternType="none"/></fill><fill><patternFill patternType="gray125"/></fill></fills>
<borders count="1"><border><left/><right/><top/><bottom/><diagonal/></border></borders>
<cellStyleXfs count="1"><xf numFmtId="0" fontId="0" fillId="0" borderId="0"/></cellStyleXfs>
<cellXfs count="5"><xf numFmtId="164" fontId="0" fillId="0" borderId="0" xfId="0" applyNumberFormat="1"/><xf numFmtId="164" fontId="1" fillId="0" borderId="0" xfId="0" applyNumberFormat="1" applyFont="1"/><xf numFmtId="0" fontId="2" fillId="0" borderId="0" xfId="0" applyFont="1"/><xf numFmtId="0" fontId="3" fillId="0" borderId="0" xfId="0" applyFont="1"/><xf numFmtId="0" fontId="3" fillId="0" borderId="0" xfId="0" applyFont="1"/></cellXfs>
<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles>
</styleSheet>"""  # noqa: E501


class SheetCell(NamedTuple):
    """A number or a text, and the formula that computes it.

    span  the range that an array formula fills, from its first cell; the other cells have their values alone
    """

    value: float | str
    look: Look = "number"
    formula: str = ""
    span: str = ""


class Worksheet(NamedTuple):
    """A sheet: its name, and its cells by row and column from 1."""

    name: str
    cells: dict[tuple[int, int], SheetCell]


def column_name(column: int) -> str:
    """The letters of a column, from 1.

    >>> column_name(1), column_name(28), column_name(703)
    ('A', 'AB', 'AAA')
    """
    letters = ""
    while column:
        column, rest = divmod(column - 1, 26)
        letters = chr(65 + rest) + letters
    return letters


def sheet_name(text: str) -> str:
    """A text as the name of a sheet, which is short and lacks some signs.

    >>> sheet_name("1 embed: [x]"), len(sheet_name("a" * 40))
    ('1 embed   x', 31)
    """
    return re.sub(r"[\\/?*\[\]:']", " ", escaped(text))[:NAME_LENGTH].strip() or "sheet"


def encode_workbook(sheets: Sequence[Worksheet]) -> bytes:
    """Write sheets as an XLSX file, which a spreadsheet recalculates as it opens it.

    >>> data = encode_workbook([Worksheet("a", {(1, 1): SheetCell(2.0), (1, 2): SheetCell(4.0, formula="$A$1*2")})])
    >>> archive = zipfile.ZipFile(io.BytesIO(data))
    >>> archive.read("xl/worksheets/sheet1.xml").decode().partition("<sheetData>")[2].partition("</sheetData>")[0]
    '<row r="1"><c r="A1" s="0"><v>2.0</v></c><c r="B1" s="0"><f>$A$1*2</f><v>4.0</v></c></row>'
    """
    numbers = range(1, len(sheets) + 1)
    relations = [(f"worksheets/sheet{at}.xml", "worksheet") for at in numbers] + [("styles.xml", "styles")]
    parts = {
        "[Content_Types].xml": content_types(len(sheets)),
        "_rels/.rels": relations_xml([("xl/workbook.xml", "officeDocument")]),
        "xl/workbook.xml": workbook_xml([sheet.name for sheet in sheets]),
        "xl/_rels/workbook.xml.rels": relations_xml(relations),
        "xl/styles.xml": STYLES,
        **{f"xl/worksheets/sheet{at}.xml": sheet_xml(sheet) for at, sheet in zip(numbers, sheets, strict=True)},
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(zipfile.ZipInfo(name, NEW_YEAR_1980), text, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def content_types(count: int) -> str:
    kinds = {"/xl/workbook.xml": "sheet.main", "/xl/styles.xml": "styles"}
    kinds |= {f"/xl/worksheets/sheet{at}.xml": "worksheet" for at in range(1, count + 1)}
    overrides = "".join(
        f'<Override PartName="{name}" ContentType="{SHEET_TYPE}.{kind}+xml"/>' for name, kind in kinds.items()
    )
    relations = '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    xml = '<Default Extension="xml" ContentType="application/xml"/>'
    return f'{HEAD}<Types xmlns="{PACKAGE}/content-types">{relations}{xml}{overrides}</Types>'


def relations_xml(targets: Sequence[tuple[str, str]]) -> str:
    """The relations of a part, whose ids are rId1, rId2 …"""
    rows = "".join(
        f'<Relationship Id="rId{at}" Type="{RELATIONS}/{kind}" Target="{target}"/>'
        for at, (target, kind) in enumerate(targets, start=1)
    )
    return f'{HEAD}<Relationships xmlns="{PACKAGE}/relationships">{rows}</Relationships>'


def workbook_xml(names: Sequence[str]) -> str:
    rows = "".join(
        f'<sheet name={quoteattr(name)} sheetId="{at}" r:id="rId{at}"/>' for at, name in enumerate(names, start=1)
    )
    return (
        f'{HEAD}<workbook xmlns="{MAIN}" xmlns:r="{RELATIONS}"><sheets>{rows}</sheets>'
        '<calcPr calcId="0" fullCalcOnLoad="1"/></workbook>'
    )


def sheet_xml(sheet: Worksheet) -> str:
    rows: dict[int, list[str]] = {}
    for (row, column), cell in sorted(sheet.cells.items()):
        rows.setdefault(row, []).append(cell_xml(f"{column_name(column)}{row}", cell))
    data = "".join(f'<row r="{row}">{"".join(cells)}</row>' for row, cells in rows.items())
    columns = '<cols><col min="1" max="1" width="14" customWidth="1"/></cols>'
    return f'{HEAD}<worksheet xmlns="{MAIN}">{columns}<sheetData>{data}</sheetData></worksheet>'


def cell_xml(place: str, cell: SheetCell) -> str:
    """The element of a cell. NaN is the error that a spreadsheet has for it.

    >>> cell_xml("A1", SheetCell("a < b", "note"))
    '<c r="A1" s="4" t="inlineStr"><is><t xml:space="preserve">a &lt; b</t></is></c>'
    """
    style = LOOKS.index(cell.look)
    if isinstance(cell.value, str):
        text = escape(shortened(escaped(cell.value)))
        return f'<c r="{place}" s="{style}" t="inlineStr"><is><t xml:space="preserve">{text}</t></is></c>'
    formula = escape(cell.formula)
    if cell.span:
        formula = f'<f t="array" ref="{cell.span}">{formula}</f>'
    elif formula:
        formula = f"<f>{formula}</f>"
    if math.isnan(cell.value):
        return f'<c r="{place}" s="{style}" t="e">{formula}<v>#NUM!</v></c>'
    value = math.copysign(INFINITY, cell.value) if math.isinf(cell.value) else cell.value
    return f'<c r="{place}" s="{style}">{formula}<v>{value!r}</v></c>'
