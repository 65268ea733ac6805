"""Go templates over records: what Conduit's conditions and values are written in."""

from __future__ import annotations

import pytest

from conduit_tasks.errors import ConfigError, RecordError
from conduit_tasks.templates import regex
from conduit_tasks.templates.template import compile
from tests.processors.conftest import record

AFTER = {
    "delay": 70,
    "carrier": "UA",
    "none": None,
    "price": 12.5,
    "stops": ["LGA", "ORD"],
    "plane": {"tail": "N1", "seats": 180},
    "text": "Äb c",
}


def shown(text: str) -> str:
    return compile(text).render(record(AFTER, key=b"k1", metadata={"delay": "late"}))


@pytest.mark.parametrize(
    ("text", "out"),
    [
        ("plain", "plain"),
        ("{{ .Payload.After.carrier }}-{{ .Payload.After.delay }}", "UA-70"),
        ("{{ .Key }} {{ .Operation }} {{ .Metadata.delay }} {{ .Metadata.kind }}", "k1 create late flight"),
        ('{{ index .Metadata "opencdc.readAt" }}', "1700000000000000000"),
        (
            "{{ .Payload.After.absent }}|{{ .Payload.After.absent.deeper }}|{{ .Payload.Before }}",
            "|".join(["<no value>"] * 3),
        ),
        ("{{ .Payload.After.plane }} {{ .Payload.After.stops }}", "map[seats:180 tail:N1] [LGA ORD]"),
        ("a  {{- 1 -}}  b", "a1b"),
        ("a{{/* says nothing */}}b", "ab"),
        ('{{ "q\\"\\u00e4" }}{{ `raw\\n` }}', 'q"äraw\\n'),
        ("{{ 0x10 }} {{ 1_000 }} {{ 1e3 }} {{ 'a' }} {{ -5 }}", "16 1000 1000 97 -5"),
        ("{{ 1e21 }} {{ 0.00001 }} {{ 100000.5 }}", "1e+21 1e-05 100000.5"),
        ("{{ if gt .Payload.After.delay 60 }}late{{ else }}ok{{ end }}", "late"),
        ("{{ if false }}a{{ else if .Payload.After.none }}b{{ else }}c{{ end }}", "c"),
        ("{{ range .Payload.After.stops }}<{{ . }}>{{ else }}none{{ end }}", "<LGA><ORD>"),
        ("{{ range $i, $s := .Payload.After.stops }}{{ $i }}{{ $s }};{{ end }}", "0LGA;1ORD;"),
        ("{{ range $k, $v := .Payload.After.plane }}{{ $k }}={{ $v }} {{ end }}", "seats=180 tail=N1 "),
        (
            "{{ range 5 }}{{ if eq . 1 }}{{ continue }}{{ end }}{{ if eq . 3 }}{{ break }}{{ end }}{{ . }}{{ end }}",
            "02",
        ),
        ("{{ range .Payload.After.none }}x{{ else }}none{{ end }}", "none"),
        ("{{ with .Payload.After.plane }}{{ .tail }}{{ $.Operation }}{{ end }}", "N1create"),
        ("{{ with $p := .Payload.After.plane }}{{ $p.seats }}{{ else }}no{{ end }}", "180"),
        ("{{ $x := 1 }}{{ if true }}{{ $x = 2 }}{{ $x := 9 }}{{ end }}{{ $x }}", "2"),
        ('{{ (index .Payload.After.stops 1) | lower | printf "%s-%03d" }}x', None),
        (
            '{{ printf "%-5s|%05d|%.2f|%q|%v|%x|%t|%%" "a" 42 1.005 "q" nil "hi" true }}',
            'a    |00042|1.00|"q"|<nil>|6869|true|%',
        ),
        ('{{ print 1 2 "a" 3 }}{{ println "x" 1 }}', "1 2a3x 1\n"),
        ("{{ html `<a&b>` }} {{ urlquery `a b&c` }}", "&lt;a&amp;b&gt; a+b%26c"),
        ("{{ len .Payload.After.text }} {{ len .Payload.After.stops }}", "5 2"),
        ("{{ and 1 0 2 }} {{ or 0 `` `x` }} {{ not 0 }}", "0 x true"),
        ("{{ .Payload.After.none | default `d` }} {{ coalesce nil `` 3 }} {{ empty 0 }}", "d 3 true"),
        ("{{ ternary `y` `n` (eq 1 1) }}", "y"),
        (
            "{{ upper `ab` }}{{ title `new york` }}{{ trim ` x ` }}{{ trimPrefix `a` `ab` }}{{ trimAll `$` `$5$` }}",
            "ABNew Yorkxb5",
        ),
        (
            "{{ replace ` ` `-` `a b` }} {{ contains `b` `abc` }} {{ hasPrefix `a` `abc` }} {{ hasSuffix `a` `abc` }}",
            "a-b true true false",
        ),
        ("{{ splitList `,` `a,b` | join `+` }} {{ (split `,` `a,b`)._1 }}", "a+b b"),
        (
            '{{ quote `a` 1 }} {{ .Payload.After.plane | toJson }} {{ (fromJson `{"a":[1]}`).a }}',
            '"a" "1" {"seats":180,"tail":"N1"} [1]',
        ),
        ("{{ int `12` }} {{ int64 3.9 }} {{ float64 `1.5` }} {{ atoi `x` }} {{ toString 5 }}", "12 3 1.5 0 5"),
        (
            "{{ add 1 2 3 }} {{ sub 5 2 }} {{ mul 2 3 }} {{ div -7 2 }} {{ mod -7 2 }} {{ max 1 5 3 }} {{ min 4 2 }}",
            "6 3 6 -3 -1 5 2",
        ),
        ("{{ round 123.5555 3 }} {{ floor 1.7 }} {{ ceil 1.2 }}", "123.556 1 2"),
        ("{{ b64enc `hi` }} {{ b64dec `aGk=` }}", "aGk= hi"),
        ("{{ sha256sum `a` | trunc 8 }}", "ca978112"),
        ("{{ list 1 2 | last }} {{ first .Payload.After.stops }} {{ has 2 (list 1 2) }}", "2 LGA true"),
        ("{{ $d := dict `a` 1 }}{{ hasKey $d `a` }}{{ get $d `b` }}{{ $d.a }}", "true1"),
        ("{{ regexMatch `^U` .Payload.After.carrier }} {{ regexReplaceAll `(a)(b)` `xab` `${2}$1` }}", "true xba"),
        ("{{ regexFind `[0-9]+` `a12b3` }}|{{ regexFind `x` `a` }}", "12|"),
        (
            "{{ regexFindAll `[0-9]` `1a2b3` 2 }} {{ regexFindAll `a` `aaa` 0 }} {{ regexFindAll `é.` `éaéb` -1 }}",
            "[1 2] [] [éa éb]",
        ),
        ("{{ regexFindAll `x*` `abxd` -1 | len }} {{ regexReplaceAll `x*` `abxd` `-` }}", "4 -a-b-d-"),
        ("{{ regexReplaceAll `^a` `aaa` `b` }} {{ regexReplaceAll `\\bA` `A aA` `<$0>` }}", "baa <A> aA"),
        (
            "{{ regexReplaceAll `(?P<y>[0-9]{4})-(?<m>..)` `2024-05` `${m}/$y $1x${1}x $$ $9 $no $-` }}",
            "05/2024 2024x $   $-",
        ),
        (
            "{{ regexReplaceAll `(a)|(b)` `ab` `[$1$2]` }} {{ regexReplaceAllLiteral `a(x*)b` `-ab-` `${1}` }}",
            "[a][b] -${1}-",
        ),
        ("{{ regexMatch `(?i)^É\\pL+$` `éàß` }} {{ regexQuoteMeta `a.b-c #` }}", "true a\\.b-c #"),
        ("{{ date `2006-01-02T15:04:05.000Z07:00` 1700000000 }}", "2023-11-14T22:13:20.000Z"),
        ("{{ dateInZone `Jan _2 3:04PM -0700 MST` 1700000000 `America/New_York` }}", "Nov 14 5:13PM -0500 EST"),
        ("{{ unixEpoch (now) | int | lt 1700000000 }}", "true"),
        ("{{ upper .Payload.After.none }}{{ contains `a` .Payload.After.absent }}", "false"),
    ],
)
def test_a_template_prints_what_go_prints(text: str, out: str | None) -> None:
    if out is None:
        with pytest.raises(RecordError, match="printf"):
            shown(text)
    else:
        assert shown(text) == out


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("{{ ne .Payload.After.delay nil }}", True),
        ("{{ eq .Payload.After.none nil }}", True),
        ("{{ eq nil .Payload.After.absent }}", True),
        ("{{ eq .Payload.After.absent `x` }}", False),
        ("{{ ge .Payload.After.delay 60 }}", True),
        ("{{ lt .Payload.After.price 12.6 }}", True),
        ("{{ le .Payload.After.delay 70.0 }}", True),
        ("{{ eq .Payload.After.carrier `AA` `UA` }}", True),
        ("{{ and (ne .Payload.After.none nil) (ge .Payload.After.none 5) }}", False),
        ("{{ eq .Key `k1` }}", True),
        ("{{ eq .Metadata.kind `flight` }}", True),
        ("{{ if .Payload.After.delay }}T{{ else }}F{{ end }}", True),
        ("0", False),
        ("TRUE", True),
    ],
)
def test_a_condition_is_the_boolean_that_it_prints(text: str, answer: bool) -> None:
    assert compile(text).condition(record(AFTER, key=b"k1")) is answer


@pytest.mark.parametrize("text", ["{{ .Payload.After.carrier }}", "", "yes", "{{ 2 }}", " true", "{{ nil }}"])
def test_a_condition_that_prints_no_boolean_fails_the_record(text: str) -> None:
    with pytest.raises(RecordError, match="true or false"):
        compile(text).condition(record(AFTER))


@pytest.mark.parametrize(
    "text",
    [
        "{{ eq .Payload.After.delay `70` }}",
        "{{ gt .Payload.After.carrier 5 }}",
        "{{ lt .Payload.After.none 5 }}",
        "{{ lt true false }}",
        "{{ div 1 0 }}",
        "{{ index .Payload.After.stops 7 }}",
        "{{ .Payload.After.delay.x }}",
        "{{ .Key.x }}",
        "{{ fail `no` }}",
        "{{ regexMatch `(` `x` }}",
        "{{ regexMatch `(?=x)x` `x` }}",
        "{{ regexMatch `(x)\\1` `xx` }}",
        "{{ regexMatch `\\C` `x` }}",
        "{{ regexMatch (repeat 70000 `x`) `x` }}",
        "{{ regexMatch `\\pL{400}` `x` }}",
        "{{ regexReplaceAll `x` (repeat 1000000 `x`) (repeat 1000 `y`) }}",
        "{{ replace `x` (repeat 1000 `y`) (repeat 1000000 `x`) }}",
        "{{ range 2000000000 }}{{ end }}",
        "{{ printf `%999999999d` 1 }}",
        "{{ printf `%.999999999f` 1.5 }}",
        "{{ range true }}{{ end }}",
        "{{ b64dec `*` }}",
        "{{ substr `a` 1 `x` }}",
    ],
)
def test_what_go_would_fail_at_fails_the_record(text: str) -> None:
    with pytest.raises(RecordError):
        compile(text).render(record(AFTER, key=b"k1"))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{{ nosuch 1 }}", "column 4: there is no function 'nosuch'"),
        ("{{ .Body }}", "column 4: a record has no field .Body"),
        ("a\n {{ $x }}", "line 2, column 5: the variable"),
        ("{{ if true }}x", "column 1: the block is not closed"),
        ("{{ end }}", "column 4: end closes nothing"),
        ("{{ eq 1 }}", "column 4: eq takes at least 2"),
        ('{{ "a }}', "column 4"),
        ("{{ 1", "column 1: the action is not closed"),
        ("{{ }}", "column 1: the action is empty"),
        ("{{ 1 | 2 }}", "column 8: only a function"),
        ("{{ .Key 5 }}", "column 9"),
        ("{{ (eq 1 1 }}", "column 4: the parenthesis"),
        ("{{ define `x` }}{{ end }}", "column 4: define is not supported"),
        ("{{ break }}", "column 4: break stands outside"),
        ("{{ env `HOME` }}", "column 4: there is no function 'env'"),
    ],
)
def test_a_mistake_is_refused_with_its_place(text: str, place: str) -> None:
    with pytest.raises(ConfigError) as error:
        compile(text)
    assert place in str(error.value)


@pytest.mark.parametrize("name", ["__class__", "origin", "metadata", "copy"])
def test_nothing_of_python_is_reachable(name: str) -> None:
    with pytest.raises(ConfigError):
        compile(f"{{{{ .{name} }}}}")
    assert compile(f"{{{{ .Payload.After.{name} }}}}").render(record(AFTER)) == "<no value>"
    with pytest.raises(RecordError):
        compile(f"{{{{ .Operation.{name} }}}}").render(record(AFTER))


def test_a_template_leaves_the_record_alone() -> None:
    subject = record({"l": [2, 1], "m": {"a": 1}})
    compile("{{ append .Payload.After.l 3 }}{{ omit .Payload.After.m `a` }}{{ reverse .Payload.After.l }}").render(
        subject
    )
    assert subject.after == {"l": [2, 1], "m": {"a": 1}}


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$", "(a|aa)+$", "(.*)*=", "a?" * 26 + "a" * 26 + "$", "(x+x+)+y"])
def test_no_pattern_is_slower_than_its_text_is_long(pattern: str) -> None:
    # Given what a backtracking engine tries in 2^n ways; here, a thousand times as much text
    subject = record({"text": "a" * 26_000 + "!" + "x" * 26_000})
    # Then it is answered; with backtracking it would take longer than the universe is old
    assert compile("{{ regexMatch `" + pattern + "` .Payload.After.text }}").render(subject) in ("true", "false")


@pytest.mark.proves("C4")
@pytest.mark.parametrize(
    "call",
    [
        "regexFindAll `a*b|a` .Payload.After.text -1",
        "regexReplaceAll `a*b|a` .Payload.After.text `x`",
        "regexReplaceAllLiteral `a*b|a` .Payload.After.text `x`",
    ],
)
def test_matches_that_are_each_looked_for_to_the_end_fail_the_record(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    # Given a text whose every character is a match, which is known only at its end
    monkeypatch.setattr(regex, "SECONDS", 0.01)
    monkeypatch.setattr(regex, "EACH", 0.0)
    subject = record({"text": "a" * 50_000})
    # When all are looked for, then the record fails, and its error says why
    with pytest.raises(RecordError, match="to look for all matches in 50,000 bytes takes too long"):
        compile("{{ " + call + " }}").render(subject)


def test_many_matches_alone_are_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regex, "SECONDS", 0.0)
    monkeypatch.setattr(regex, "EACH", 1.0)
    found = compile("{{ regexFindAll `a` .Payload.After.text -1 | len }}").render(record({"text": "ab" * 10_000}))
    assert found == "10000"


def test_a_template_nested_too_deep_is_a_mistake_in_it() -> None:
    with pytest.raises(ConfigError, match="deep"):
        compile("{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}")
    with pytest.raises(ConfigError, match="characters"):
        compile("x" * 2_000_000)
