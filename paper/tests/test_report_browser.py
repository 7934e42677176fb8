"""The page of `python -m paper report` in a real browser: drawn, filtered, on a phone, in the dark and on paper."""

import re

import pytest

import made_outcomes
from paper import report
from paper.results import COMMITTED
from paper.sections import outcomes

PLOTS = "document.querySelectorAll('figure.plot')"
SIZES = "#entry-sizes figure.plot"
PAGES = rb"/Type\s*/Page\b"
# Texts of a drawing, and cells of a row, whose boxes lie on each other; and verdicts that reach beyond the page.
OVERLAPS = """(() => {
  const meet = (p, q) => Math.min(p.right, q.right) - Math.max(p.left, q.left) > 1
    && Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 3;
  const found = [];
  for (const box of document.querySelectorAll('.drawing svg, .figures tr, .title')) {
    const parts = [...box.querySelectorAll('text, td, h3, .badge')].filter(one => !one.parentElement.closest('td'));
    const all = parts.map(one => [one.textContent, one.getBoundingClientRect()]).filter(([, one]) => one.width);
    all.forEach(([text, one], at) => all.slice(at + 1).forEach(([other, two]) => {
      if (meet(one, two)) found.push([text, other]);
    }));
  }
  const beyond = [...document.querySelectorAll('.badge')].filter(one => one.getBoundingClientRect().right > innerWidth);
  return [...found, ...beyond.map(one => [one.textContent])];
})()"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    written = folder / "page.html"
    written.write_text(report.to_html(made_outcomes.outcomes(folder)), encoding="utf-8")
    return written


@pytest.fixture
def page(page):
    """The page with every entry open."""
    return unfold(page)


def unfold(page):
    page.run("[...document.querySelectorAll('.entry > details')].forEach(one => (one.open = true))")
    page.settle()  # an observer draws the plots
    page.settle()
    return page


def visible(page):
    """The names of the entries that can be seen."""
    return {entry.get_attribute("id") for entry in page.all("section.entry") if entry.is_displayed()}


# --- plots ----------------------------------------------------------------------------------------------------------


def test_every_plot_is_drawn(page, path):
    drawn = page.run(
        f"[...{PLOTS}].map(p => [...p.querySelectorAll('.drawing .marks')].map(m => m.getBoundingClientRect().width))"
    )
    plots = [plot for outcome in made_outcomes.outcomes(path.parent) for plot in outcome.plots]
    assert sorted(map(len, drawn)) == sorted(len(plot.series) for plot in plots)
    assert all(width > 0 for widths in drawn for width in widths)
    for index in range(len(plots)):
        picture = page.pixels(f"figure.plot[data-plot='{index}'] .drawing")
        assert picture.std() > 3


def test_marks_stand_where_the_values_are(page):
    """On two logarithmic axes a power law is a straight line, rising to the right."""
    curve = page.run(f"document.querySelector('{SIZES} .drawing .curve').getAttribute('d')")
    x, y = zip(*((float(a), float(b)) for a, b in re.findall(r"([\d.]+),([\d.]+)", curve)))
    slopes = [(y[i + 1] - y[i]) / (x[i + 1] - x[i]) for i in range(len(x) - 1)]
    assert len(x) == 7
    assert max(slopes) < 0  # pixels count downwards
    assert max(slopes) - min(slopes) < 0.01 * abs(slopes[0])


def test_powers_of_two_are_labelled_so(page):
    labels = page.run(f"[...document.querySelectorAll('{SIZES} .label')].map(l => l.textContent)")
    assert "210" in labels  # 2 with a raised 10
    assert page.run(f"document.querySelectorAll('{SIZES} .power').length") > 3


def test_the_paper_has_marks_without_a_line_in_the_colour_of_ours(page):
    for place in (".drawing", ".legend"):
        lines = page.run("[...document.querySelectorAll(arguments[0])].map(g => !!g.querySelector('.curve'))",
                         f"{SIZES} {place} .line")  # fmt: skip
        assert lines == [True, True, True, False]
    style = "[...document.querySelectorAll(arguments[0])].map(m => getComputedStyle(m).stroke)"
    colours = page.run(style, f"{SIZES} .drawing .marks")
    assert len(set(colours[:3])) == 3
    assert colours[3] == colours[0]


def test_hovering_shows_values(page):
    drawing = page.one(f"{SIZES} .drawing > svg")
    assert not page.one(f"{SIZES} .tip").is_displayed()
    page.pointer(drawing).move_by_offset(-drawing.size["width"] // 2 + 45, 0).perform()
    message = page.text(f"{SIZES} .tip")
    assert "n: 210" in message
    assert "0.001" in message
    assert "LAPLEX (paper)" in message
    page.pointer(page.one("h1")).perform()
    assert not page.one(f"{SIZES} .tip").is_displayed()


def test_the_keyboard_reads_values_too(page):
    page.run("document.querySelector(arguments[0]).focus()", f"{SIZES} .drawing > svg")
    drawing = page.one(f"{SIZES} .drawing > svg")
    drawing.send_keys("\ue014")  # right
    assert "n: 210" in page.text(f"{SIZES} .tip")
    drawing.send_keys("\ue014")
    assert "n: 212" in page.text(f"{SIZES} .tip")


def test_a_finger_shows_values_that_stay(page, path):
    page.show(path, width=390, height=800)
    unfold(page).touch(page.one(f"{SIZES} .drawing > svg"))
    assert page.one(f"{SIZES} .tip").is_displayed()
    assert "n: 216" in page.text(f"{SIZES} .tip")


def test_the_legend_hides_a_line(page):
    before = len(page.all(f"{SIZES} .drawing .marks"))
    page.click(f"{SIZES} .legend button:nth-child(3)")
    assert len(page.all(f"{SIZES} .drawing .marks")) == before - 1
    assert page.one(f"{SIZES} .legend button:nth-child(3)").get_attribute("aria-pressed") == "false"
    for place in (1, 2, 4):
        page.click(f"{SIZES} .legend button:nth-child({place})")
    assert page.text(f"{SIZES} .drawing > svg") == "no values to draw"


def test_the_axis_can_be_linear(page):
    before = page.run(f"document.querySelector('{SIZES} .curve').getAttribute('d')")
    page.click(f"{SIZES} .legend .scale")
    assert page.text(f"{SIZES} .legend .scale") == "log axis"
    assert page.run(f"document.querySelector('{SIZES} .drawing .curve').getAttribute('d')") != before


def test_every_plot_of_the_committed_results_is_drawn(page, tmp_path):
    results = outcomes([COMMITTED])
    written = tmp_path / "page.html"
    written.write_text(report.to_html(results), encoding="utf-8")
    page.show(written)
    unfold(page)
    assert len(page.all("section.entry")) == len(results)
    drawn = page.run(f"[...{PLOTS}].map(p => p.querySelectorAll('.drawing .marks').length)")
    assert len(drawn) == sum(len(outcome.plots) for outcome in results) > 5
    assert min(drawn) > 0
    broken = "[...document.images].filter(i => !(i.complete && i.naturalWidth)).map(i => i.alt)"
    assert page.run(broken) == []
    for width in (360, 390, 1280):
        page.show(written, width=width, height=740)
        unfold(page)
        assert page.run("document.documentElement.scrollWidth") <= width
        assert page.run(OVERLAPS) == []


# --- folded entries, filters, links and pictures ----------------------------------------------------------------------


def test_entries_are_folded_and_show_their_verdicts(browser, path):
    browser.show(path)
    assert len(browser.all(".entry > details")) == 5
    assert browser.all(".entry > details[open]") == []
    for entry in browser.all("section.entry"):
        assert entry.find_element("css selector", "summary .badge").is_displayed()
        assert not entry.find_element("css selector", ".reason").is_displayed()
    browser.one("#entry-sizes summary").click()
    browser.settle()
    browser.settle()
    assert browser.one("#entry-sizes .reason").is_displayed()
    assert browser.one(f"{SIZES} .drawing .marks").is_displayed()  # drawn as soon as there is room


def test_a_link_to_an_entry_unfolds_it(browser, path):
    browser.show(path)
    browser.browser.execute_script("document.querySelector('#contents li a').click()")
    browser.settle()
    assert [one.get_attribute("id") for one in browser.all(".entry:has(> details[open])")] == ["entry-sizes"]


def test_filters_show_the_right_entries(page):
    everything = visible(page)
    assert len(everything) == 5
    page.click("[data-filter='not reproduced']")
    assert visible(page) == {"entry-error", "entry-hostile"}
    assert page.text("#shown") == "2 of 5 entries"
    assert [item.get_attribute("data-entry") for item in page.all("#contents li") if item.is_displayed()] == [
        "entry-hostile",
        "entry-error",
    ]
    assert [group.text for group in page.all(".group > h2") if group.is_displayed()] == ["Heads", "Accuracy"]
    page.click("[data-filter='all']")
    assert visible(page) == everything


def test_the_search_narrows(page):
    page.one("#search").send_keys("celeba")
    assert visible(page) == {"entry-images"}
    page.one("#search").send_keys(" nothing like this")
    assert visible(page) == set()
    assert page.one("#none-matches").is_displayed()


def test_links_of_the_contents_go_to_their_sections(page):
    for link in page.all("#contents a"):
        target = link.get_attribute("href").partition("#")[2]
        page.browser.execute_script("arguments[0].click()", link)
        page.settle()
        at_end = page.run("innerHeight + scrollY >= document.documentElement.scrollHeight - 2")
        top = page.run("document.getElementById(arguments[0]).getBoundingClientRect().top", target)
        assert -1 <= top <= 60 or (at_end and 0 <= top <= 1000)


def test_a_link_to_a_hidden_entry_shows_it(page):
    page.click("[data-filter='exceeded']")
    page.run("location.hash = '#entry-images'")
    page.settle()
    assert "entry-images" in visible(page)


def test_a_picture_is_enlarged_and_closed(page):
    page.click(".enlarge")
    assert page.one("dialog.enlarged img").is_displayed()
    page.click("dialog.enlarged img")
    page.settle()
    assert page.all("dialog") == []


# --- how it looks ---------------------------------------------------------------------------------------------------


def test_the_dark_page_is_dark(page):
    light = page.pixels("header")
    page.scheme(dark=True)
    dark = page.pixels("header")
    assert light.mean() > 200
    assert dark.mean() < 70
    assert light.std() > 10
    assert dark.std() > 10


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_page_does_not_scroll_sideways(page, path, width):
    page.show(path, width=width, height=800)
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.pixels().std() > 10
    boxes = page.run(f"[...{PLOTS}].map(p => p.getBoundingClientRect().right)")
    assert max(boxes) <= width


def test_it_prints(page, path):
    page.click("[data-filter='exceeded']")  # a filter is for the screen
    open_pages = len(re.findall(PAGES, page.pdf()))
    assert open_pages >= 4
    page.show(path)
    printed = page.pdf()  # what is folded is open on paper, and folded again after it
    assert printed.startswith(b"%PDF")
    assert len(re.findall(PAGES, printed)) == open_pages
    assert page.all(".entry > details[open]") == []


def test_it_reads_without_scripts(browser, path):
    browser.browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.show(path)
        assert browser.one("header noscript p").is_displayed()
        browser.one("#entry-sizes > details > summary").click()
        assert browser.one("#entry-sizes .figures").is_displayed()
        browser.one("#entry-sizes .values summary").click()
        assert "LAPLEX (paper)" in browser.one("#entry-sizes .values table").text
    finally:
        browser.browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
