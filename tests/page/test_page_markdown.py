"""Whatever a model writes, the page shows it and nothing of it runs, loads or goes elsewhere."""

import random
from typing import Any

import pytest

from page_server import PageServer
from page_visit import Visit, expect

# Each visit takes a second.
pytestmark = pytest.mark.slow

HOSTILE = (
    "<script>window.hurt = 1</script>",
    "<img src=x onerror='window.hurt = 1'>",
    "<svg onload='window.hurt = 1'><script>window.hurt = 1</script></svg>",
    "<math><mtext><table><mglyph><style><img src onerror=window.hurt=1>",
    "<iframe srcdoc='<script>parent.hurt = 1</script>'></iframe>",
    "<style>body { display: none }</style>",
    "<link rel=stylesheet href=https://foreign.example/a.css>",
    "<base href=https://foreign.example/>",
    "<meta http-equiv=refresh content='0; url=https://foreign.example/'>",
    "<form action=https://foreign.example/><input name=key><button>Send</button></form>",
    "<a href='javascript:window.hurt = 1'>click</a>",
    "<details open ontoggle=window.hurt=1>",
    "<video src=https://foreign.example/v autoplay></video>",
    "<object data=https://foreign.example/o></object><embed src=https://foreign.example/e>",
    "<b id=announcer>two of one id</b>",
    "[click](javascript:window.hurt=1)",
    "[click](JaVaScRiPt&colon;window.hurt=1)",
    "[click](java\tscript:window.hurt=1)",
    "[click](\x01javascript:window.hurt=1)",
    "[click](vbscript:hurt)",
    "[click](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    "[click](file:///etc/passwd)",
    "[click](/panel)",
    "[click](//foreign.example/)",
    "[click][ref]\n\n[ref]: javascript:window.hurt=1",
    "<javascript:window.hurt=1>",
    "![picture](https://foreign.example/pixel.png)",
    "![picture](data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9ImFsZXJ0KDEpIi8+)",
    "![x](javascript:window.hurt=1)",
    '![a](https://foreign.example/"onerror="window.hurt=1)',
    '[a](https://foreign.example/"onmouseover="window.hurt=1 "t\\"onclick=hurt")',
    "[![p](https://foreign.example/p.png)](https://foreign.example/)",
    "```<script>window.hurt=1</script>\n<img src=x onerror=window.hurt=1>\n```",
    '```html"onmouseover="window.hurt=1\n<script>window.hurt=1</script>\n```',
    "```html\n<script>window.hurt=1</script><img src=x onerror=window.hurt=1>\n```",
    "`<img src=x onerror=window.hurt=1>`",
    "| a |\n|:-:|\n| <img src=x onerror=window.hurt=1> |",
    "> - 1. > <svg/onload=window.hurt=1>",
    "# <img src=x onerror=window.hurt=1>\n===",
    "&lt;img src=x onerror=window.hurt=1&gt; &#60;script&#62;window.hurt=1",
    "<!-- --><!--><img src=x onerror=window.hurt=1>-->",
    "\x00<scr\x00ipt>window.hurt=1</script>",
    ">" * 3000 + " deep",
    "*" * 5000 + "[" * 5000,
)

# What the text of an answer may be made of; the rest of the page is ours.
FAULTS = """(root) => {
  const allowed = new Set("A ARTICLE BLOCKQUOTE BR BUTTON CODE DETAILS DIV EM H2 H3 H4 H5 H6 HR \
LI OL P PATH PRE S SPAN STRONG SUMMARY SVG TABLE TBODY TD TH THEAD TR UL".split(" "));
  const names = new Set("aria-busy aria-label aria-hidden class d data-language href open rel role \
start tabindex target title type viewBox".split(" "));
  const faults = [];
  for (const element of root.querySelectorAll("*")) {
    if (!allowed.has(element.tagName.toUpperCase())) faults.push(element.outerHTML);
    if (element.closest("svg") && !element.closest("button")) faults.push(element.outerHTML);
    for (const { name } of element.attributes) if (!names.has(name)) faults.push(`${name}=`);
    if (element.tagName === "A") {
      if (!/^(https?|mailto):/.test(element.href)) faults.push(element.href);
      if (!/noopener noreferrer/.test(element.rel)) faults.push("rel");
      if (element.target !== "_blank") faults.push("target");
    }
  }
  return faults;
}"""

SHOW = f"""async (texts) => {{
  const script = document.querySelector("script[type=module]").src;
  const {{ showMarkdown }} = await import(new URL("markdown.js", script));
  const faults = [];
  const root = document.createElement("div");
  document.body.append(root);
  for (const text of texts) {{
    showMarkdown(root, text);
    // Not a timer: from the fifth on the browser makes each wait for 4 ms.
    await scheduler.postTask(() => 0);
    for (const fault of ({FAULTS})(root)) faults.push([text, fault]);
  }}
  root.remove();
  return faults;
}}"""


def _check(visit: Visit, texts: list[str]) -> None:
    faults: Any = visit.page.evaluate(SHOW, texts)
    assert faults == []
    assert visit.page.evaluate("window.hurt") is None


def _is_inert(visit: Visit) -> None:
    turns = visit.page.locator("#turns").element_handle()
    assert visit.page.evaluate(FAULTS, turns) == []
    assert visit.page.evaluate("window.hurt") is None
    assert visit.page.url == visit.url


def test_hostile_answers(visit: Visit, server: PageServer) -> None:
    """Through the whole path, in pieces of any size; a reload shows them once more."""
    text = "\n\n".join(HOSTILE) + "\n\n```\nThe end."
    server.play([text[at : at + 7] for at in range(0, len(text), 7)])
    expect(visit.ask(HOSTILE[1])).to_contain_text("The end.")
    _is_inert(visit)
    visit.page.reload()
    expect(visit.answers).to_contain_text("The end.")
    _is_inert(visit)


def test_hostile_chats_in_the_storage(visit: Visit) -> None:
    """Each text as question, answer, thoughts and title."""
    messages = [
        {"role": role, "content": text, "reasoning": text, "state": "done"}
        for text in HOSTILE
        for role in ("user", "assistant")
    ]
    chats = [
        {"id": f"c{at}", "title": text, "changed": at, "messages": messages if not at else []}
        for at, text in enumerate(HOSTILE)
    ]
    visit.page.evaluate(
        """(chats) => {
          for (const chat of chats) {
            localStorage.setItem(`powerinfer.chat.${chat.id}`, JSON.stringify(chat));
          }
          sessionStorage.setItem("powerinfer.open", "c0");
        }""",
        chats,
    )
    visit.page.reload()
    expect(visit.answers).to_have_count(len(HOSTILE))
    visit.page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    expect(visit.page.locator("details .markdown > *")).not_to_have_count(0)
    _is_inert(visit)
    assert len(visit.chats) == len(HOSTILE)


def test_mixtures_of_hostile_texts(visit: Visit) -> None:
    """Cut and nested at random: 400 of them, each as it would grow in three pieces."""
    draw = random.Random(7)
    short = [text for text in HOSTILE if len(text) < 500]
    wraps = (
        "{}",
        "> {}",
        "- {}",
        "**{}**",
        "[{}](https://a.example)",
        "# {}",
        "| {} |\n|-|\n",
        "`{}",
    )
    texts = []
    for _ in range(400):
        parts = [draw.choice(wraps).replace("{}", draw.choice(short)) for _ in range(3)]
        text = draw.choice(("", " ", "\n", "\n\n")).join(parts)
        cut = draw.randrange(len(text))
        texts += [text[: cut // 2], text[:cut], text[cut:]]
    _check(visit, texts)


def test_the_policy_stops_what_would_come_through(visit: Visit) -> None:
    """A second wall: even a script in the document may not make HTML, load or run text."""
    visit.expected += ["violates", "blocked", "Refused"]
    outcome = visit.page.evaluate(
        """async () => {
          const outcome = [];
          try { document.body.innerHTML += "<img src=x onerror=window.hurt=1>"; }
          catch (error) { outcome.push(error.name); }
          const script = document.createElement("script");
          try { script.text = "window.hurt = 1"; document.body.append(script); }
          catch (error) { outcome.push(error.name); }
          try { await fetch("https://foreign.example/"); }
          catch (error) { outcome.push(error.name); }
          return outcome;
        }"""
    )
    assert outcome == ["TypeError", "TypeError", "TypeError"]
    assert visit.page.evaluate("window.hurt") is None


def test_a_picture_is_a_link_that_loads_nothing(visit: Visit, server: PageServer) -> None:
    server.play(("![a cat](https://foreign.example/cat.png)",))
    link = visit.ask("Show").get_by_role("link", name="Picture: a cat")
    expect(link).to_have_attribute("href", "https://foreign.example/cat.png")
    expect(link).to_have_attribute("rel", "noopener noreferrer nofollow")


def test_what_markdown_is_for(visit: Visit, server: PageServer) -> None:
    server.play(
        (
            "# Title\n\nline one\nline two https://a.example/x\n\n3. three\n4. four\n\n",
            "| l | r |\n|:--|--:|\n| 1 | 2 |\n\n~~gone~~ a_b_c **open",
        )
    )
    answer = visit.ask("Everything")
    expect(answer.get_by_role("heading", level=2)).to_have_text("Title")
    expect(answer.locator("br")).to_have_count(1)
    expect(answer.get_by_role("link")).to_have_text("https://a.example/x")
    expect(answer.locator("ol")).to_have_attribute("start", "3")
    expect(answer.locator("td.align-right")).to_have_text("2")
    expect(answer.locator("s")).to_have_text("gone")
    expect(answer).to_contain_text("a_b_c **open")


def test_blocks_that_did_not_change_stay(visit: Visit) -> None:
    kept = visit.page.evaluate(
        """async () => {
          const script = document.querySelector("script[type=module]").src;
          const { showMarkdown } = await import(new URL("markdown.js", script));
          const root = document.createElement("div");
          showMarkdown(root, "one\\n\\n```js\\nlet a");
          const [first, second] = root.children;
          showMarkdown(root, "one\\n\\n```js\\nlet a = 1\\n```\\n\\nthree");
          const grown = root.children[1] === second && root.innerText.includes("let a = 1");
          const result = [root.children[0] === first, grown, root.children.length];
          showMarkdown(root, "one");
          return [...result, root.children.length];
        }"""
    )
    assert kept == [True, True, 3, 1]
