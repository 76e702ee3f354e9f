"""The page in a real browser, over the real HTTP interface, with made-up pipelines."""

import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install 'penstock[dev]'")
from selenium.webdriver.common.by import By  # noqa: E402 # where there is no selenium, the tests are skipped
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.remote.webelement import WebElement  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
from page_program import KEY, World, serve, ten  # noqa: E402

from penstock.monitor.jetstream import JetStreams  # noqa: E402

HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
SWITCHES = (
    "headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
    "disable-component-update", "disable-sync", "disable-dev-shm-usage",
)  # fmt: skip


class Browser:
    """A page, and what somebody does with it."""

    def __init__(self, driver: Any):
        self.driver = driver

    def open(self, url: str, *, width: int = 1280, scheme: str = "light") -> None:
        """A new page, which remembers nothing."""
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.driver.get(f"{url.partition('/#')[0]}/health/live")
        self.run("sessionStorage.clear(); localStorage.clear()")
        self.driver.get(url)
        self.see("Live", "#pulse")

    def cdp(self, command: str, **given: Any) -> None:
        self.driver.execute_cdp_cmd(command, given)

    def run(self, script: str, *given: Any) -> Any:
        return self.driver.execute_script(script, *given)

    def all(self, selector: str) -> list[WebElement]:
        return list(self.driver.find_elements(By.CSS_SELECTOR, selector))

    def one(self, selector: str) -> WebElement:
        return wait(lambda: next((each for each in self.all(selector) if each.is_displayed()), None), selector)

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def see(self, pattern: str, selector: str = "main") -> str:
        def seen() -> str | None:
            text = self.text(selector)
            return text if re.search(pattern, text) else None

        return wait(seen, lambda: f"/{pattern}/ in {selector}: {self.text(selector)!r}")

    def click(self, selector: str) -> None:
        self.one(selector).click()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def keys(self) -> list[str]:
        """The pipelines, in the order in which they are shown."""
        return list(
            self.run("return [...document.querySelectorAll('#pipelines tbody tr')].map(row => row.dataset.key)")
        )

    def focused(self) -> str:
        """What has the focus, by its text."""
        return str(self.run("return document.activeElement.innerText"))


def wait(until: Callable[[], Any], what: str | Callable[[], str], seconds: float = 30.0) -> Any:
    """What comes out, once it is something."""
    deadline = time.monotonic() + seconds
    while not (found := until()):
        assert time.monotonic() < deadline, f"not seen: {what if isinstance(what, str) else what()}"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium is here, nor a chromedriver, to look at the page with")
    options = selenium.ChromeOptions()
    options.binary_location = chromium
    for switch in (*SWITCHES, f"user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = selenium.Chrome(options=options, service=selenium.ChromeService(driver))
    yield Browser(running)
    running.quit()


@contextmanager
def served(browser: Browser, world: World, *, is_plain: bool = False) -> Iterator[tuple[World, str]]:
    """A world with a page about it."""
    server = serve(world.start(), is_plain=is_plain)
    try:
        yield world, server.url
    finally:
        browser.driver.get("about:blank")  # a server waits for those who listen
        server.stop()
        world.stop()


@pytest.fixture(scope="module")
def shown(browser: Browser) -> Iterator[tuple[World, str]]:
    """Ten pipelines for all tests that do not harm them."""
    with served(browser, World(ten(), hour=900)) as both:
        yield both


@pytest.fixture
def world(shown: tuple[World, str]) -> World:
    shown[0].orders.clear()
    return shown[0]


@pytest.fixture
def url(shown: tuple[World, str], world: World) -> str:
    return shown[1]


def test_what_is_wrong_comes_first_and_the_headline_says_how_much(browser: Browser, url: str) -> None:
    browser.open(url)
    assert browser.keys()[:4] == ["payments", "clicks", "telemetry", "carts"]
    assert browser.keys()[-1] == "backfill"
    assert browser.text("h1") == "2 of 10 pipelines need you"
    reasons = browser.see("Telemetry", "#reasons").splitlines()
    assert re.fullmatch(r"Payments has failed\. Its last batch was \d min ago\.", reasons[0])
    assert reasons[1].startswith("Clicks of the shop failed, and starts again in 10 min.")
    assert re.fullmatch(r"Telemetry of a thousand machines is \d min behind.*", reasons[2])
    assert "token has expired" in browser.text("tr.failed .error")
    assert browser.driver.title == "2 need you · Penstock"
    told = [each["message"] for each in browser.driver.get_log("browser") if "favicon.ico" not in each["message"]]
    assert told == [], "no errors, and nothing that the policy of the page forbids"


def test_figures_move_without_a_reload_and_rows_stay_the_same_elements(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.run("window.row = document.querySelector('[data-key=orders]'); window.before = row.cells[6].innerText")
    wait(lambda: browser.run("return row.isConnected && row.cells[6].innerText !== before"), "another batch")
    assert browser.run("return row === document.querySelector('[data-key=orders]')")
    assert re.fullmatch(r"\d,\d{3}", browser.run("return row.cells[2].innerText"))


def test_a_click_opens_a_pipeline_and_the_back_button_returns(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.click("[data-key=orders] td.num")
    browser.see("Orders into the lake", "#title")
    detail = browser.see("It runs, and keeps up")
    for part in (
        "Flow",
        "The last hour",
        "What batches spend their time on",
        "Shards",
        "Last batches",
        "Configuration",
    ):
        assert part in detail
    assert "****" in detail
    before = browser.text(".panel .scroll tbody")
    wait(lambda: browser.text(".panel .scroll tbody") != before, "newer figures")
    browser.driver.back()
    browser.see("need you", "h1")
    assert browser.focused() == "Orders into the lake"
    browser.driver.forward()
    browser.see("Orders into the lake", "#title")


def test_stop_asks_first_and_needs_the_right_key(browser: Browser, url: str, world: World) -> None:
    browser.open(f"{url}/#/pipelines/carts")
    browser.click("[data-verb=stop]")
    browser.see("Its place is kept", "#ask")
    browser.click("#ask [value=no]")
    browser.click("[data-verb=stop]")
    browser.click("#ask-yes")
    browser.see("Orders need the key", "#unlock")
    browser.click("#unlock [value=no]")
    browser.see("Nothing was changed", ".answer")
    assert world.orders == []

    browser.click("[data-verb=stop]")
    browser.click("#ask-yes")
    browser.one("#unlock-key").send_keys("wrong" + Keys.ENTER)
    browser.see("The key is wrong", "#unlock-trouble")
    assert world.orders == []
    browser.one("#unlock-key").send_keys(KEY + Keys.ENTER)
    browser.see("Done: carts is stopped", ".answer")
    browser.see("It is stopped", "#detail .lead")
    assert world.orders == [("stop", "carts", {})]

    browser.click("[data-verb=start]")
    browser.click("#ask-yes")
    browser.see("Done: carts starts", ".answer")  # the key is asked for once
    browser.see("It runs", "#detail .lead")


def test_rewind_offers_the_batches_of_the_checkpoint(browser: Browser, url: str, world: World) -> None:
    browser.open(f"{url}/#key={KEY}&/pipelines/stock")
    browser.click("[data-verb=rewind]")
    wait(lambda: len(browser.all("#ask-batch option")) > 5, "batches")
    browser.click("#ask-yes")
    browser.see("Choose a batch first", "#ask-trouble")
    batch = int(
        browser.run("const list = document.querySelector('#ask-batch'); list.selectedIndex = 5; return list.value")
    )
    browser.click("#ask-yes")
    browser.see("Done: stock is set back", ".answer")
    assert world.orders == [("rewind", "stock", {"batch": batch})]


def test_the_key_in_the_address_is_taken_out_of_it(browser: Browser, url: str) -> None:
    browser.open(f"{url}/#key={KEY}")
    assert browser.driver.current_url == f"{url}/"
    assert browser.run("return sessionStorage.getItem('penstock-key')") == KEY
    browser.see("The key is kept until this tab is closed", "footer")
    browser.click("#forget")
    assert browser.run("return sessionStorage.length") == 0


def test_a_program_that_is_killed_is_told_and_comes_back_by_itself(browser: Browser) -> None:
    def run(port: int) -> subprocess.Popen[str]:
        file = Path(__file__).with_name("page_program.py")
        command = [sys.executable, str(file), "--port", str(port), "--hour", "60"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    program = run(0)
    try:
        assert program.stdout is not None
        url = program.stdout.readline().partition("/#")[0]
        wait_for(url)
        browser.open(url)
        program.kill()
        program.wait()
        browser.see(r"The program has not answered since \d\d:\d\d:\d\d.*What you see is from then", "#gone")
        assert "need you" in browser.text("h1")
        assert browser.run("return getComputedStyle(document.querySelector('main')).filter") == "grayscale(1)"
        program = run(int(url.rpartition(":")[2]))
        wait(lambda: browser.run("return document.querySelector('#gone').hidden"), "the program again", 40)
        browser.see("Live", "#pulse")
    finally:
        program.kill()
        program.wait()


def wait_for(url: str) -> None:
    import httpx2

    def answers() -> bool:
        try:
            return httpx2.get(url).status_code == 200
        except httpx2.TransportError:
            return False

    wait(answers, url)


def test_hostile_names_errors_and_dead_letters_are_shown_as_text(browser: Browser) -> None:
    made = [each for each in ten() if each.key in ("orders", "invoices")]
    made[0].key = made[0].title = HOSTILE
    made[0].transforms = [("sql", HOSTILE)]
    with served(browser, World(made, hour=60)) as (world, url):
        world.fail(HOSTILE, f"it broke: {HOSTILE}")
        browser.open(url)
        browser.see(re.escape(HOSTILE), "tr.failed th")  # the next event tells it
        browser.click("tr.failed th a")
        browser.see(re.escape(f"it broke: {HOSTILE}"), ".callout")
        assert browser.text("#title") == HOSTILE
        browser.see(re.escape(HOSTILE), ".parts pre")
        browser.see(re.escape(f"it broke: {HOSTILE}"), ".log")
        browser.open(f"{url}/#/pipelines/invoices")
        browser.click(".panel button:not(.quiet)")
        browser.see(r"<script>document.title = 1</script>", ".letters")
        assert browser.all("main img, main script") == []
        assert browser.driver.title.endswith("Penstock")


def test_the_keyboard_alone_opens_a_pipeline_and_gives_an_order(browser: Browser, url: str, world: World) -> None:
    browser.open(url)

    def tab_to(text: str) -> None:
        for _ in range(40):
            browser.press(Keys.TAB)
            if browser.focused() == text:
                assert browser.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
                return
        raise AssertionError(f"{text!r} cannot be reached")

    tab_to("Skip to the figures")
    tab_to("Sessions")
    browser.press(Keys.ENTER)
    browser.see("Sessions", "#title")
    assert browser.focused() == "Sessions"
    tab_to("Stop")
    browser.press(Keys.ENTER)
    browser.see("Its place is kept", "#ask")
    browser.press(Keys.ESCAPE)
    wait(lambda: not browser.run("return document.querySelector('#ask').open"), "a closed dialog")
    assert browser.focused() == "Stop"
    assert world.orders == []


CONTRAST = """
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const parts = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data]; };
const light = (c) => c.slice(0, 3).map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (node) => { for (let at = node; at; at = at.parentElement) {
  const c = parts(getComputedStyle(at).backgroundColor); if (c[3] === 255) return c; } };
const low = [];
const texts = "h1, h2, h3, p, a, th, td, dt, dd, small, button:not(:disabled), figcaption, span, text";
for (const node of document.querySelectorAll(texts)) {
  const shown = [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim());
  if (!shown || !node.checkVisibility() || node.closest(".unseen, .skip, .part.ill, .part.late, .orders")) continue;
  const style = getComputedStyle(node);
  const ink = light(parts(node.ownerSVGElement ? style.fill : style.color));
  const [one, other] = [ink, light(behind(node))].sort((a, b) => b - a);
  const ratio = (one + 0.05) / (other + 0.05);
  if (ratio < 4.5) low.push(`${node.tagName} ${node.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
}
return low;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_dark_and_light_can_be_read(browser: Browser, url: str, scheme: str) -> None:
    def ground() -> int:
        colour = browser.run("return getComputedStyle(document.documentElement).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    browser.open(url, scheme=scheme)
    assert (ground() < 200) == (scheme == "dark")
    assert browser.run(CONTRAST) == []
    browser.run("location.hash = '#/pipelines/telemetry'")
    browser.see("Shards")
    assert browser.run(CONTRAST) == []
    browser.click("#theme")
    assert (ground() < 200) == (scheme == "light")
    browser.driver.refresh()
    browser.see("Live", "#pulse")
    assert (ground() < 200) == (scheme == "light"), "what was chosen is kept"


def test_a_phone_of_360_pixels_needs_no_scrolling_sideways(browser: Browser, url: str) -> None:
    browser.open(url, width=360)
    is_narrow = "return document.documentElement.scrollWidth <= innerWidth && innerWidth === 360"
    assert browser.run(is_narrow)
    for key in ("telemetry", "invoices", "payments"):
        browser.run("location.hash = `#/pipelines/${arguments[0]}`", key)
        browser.see("Last batches")
        assert browser.run(is_narrow), key


def test_of_a_thousand_shards_the_furthest_behind_are_shown_and_change_in_place(browser: Browser, url: str) -> None:
    browser.open(f"{url}/#/pipelines/telemetry")
    browser.see("1,000 shards. These are the 50 that are furthest behind; 950 others are not shown")
    rows = "[...document.querySelector('#detail .scroll tbody').rows]"
    browser.run(f"window.rows = {rows}; window.before = rows.map(row => row.innerText).join()")
    wait(lambda: browser.run("return rows.map(row => row.innerText).join() !== before"), "newer figures")
    assert browser.run(f"const now = {rows}; return now.length === 50 && now.every((row, n) => row === rows[n])")
    assert browser.run("return document.querySelectorAll('*').length") < 2000


def test_a_program_without_pipelines_has_the_page_without_orders(browser: Browser) -> None:
    world = World([each for each in ten() if each.key == "orders"], hour=60)
    with served(browser, world, is_plain=True) as (_, url):
        browser.open(url)
        browser.see("The pipeline runs", "h1")
        browser.click("#pipelines a")
        browser.see("A query of a program, which alone can start and stop it")
        assert not any(button.is_displayed() for button in browser.all("[data-verb]"))


def test_where_looking_needs_the_key_it_is_asked_for(browser: Browser) -> None:
    world = World([each for each in ten() if each.key == "orders"], hour=60).start()
    server = serve(world)
    port = int(server.url.rpartition(":")[2])
    try:
        browser.open(server.url)
        server.stop()
        server = serve(world, port, host="0.0.0.0")  # as from another machine
        browser.see("everything needs the key", "#unlock")
        browser.one("#unlock-key").send_keys(f"wrong{random.random()}" + Keys.ENTER)
        browser.see("The key is wrong", "#unlock-trouble")
        browser.one("#unlock-key").send_keys(KEY + Keys.ENTER)
        browser.see("Live", "#pulse")
    finally:
        server.stop()
        world.stop()


class Told(JetStreams):
    """A server whose figures are made up."""

    def __init__(self, servers: list[dict[str, Any]]):
        super().__init__([])
        self.servers, self.asked = servers, 0

    def shown(self) -> list[dict[str, Any]]:
        self.asked += 1
        return self.servers


def server(**more: Any) -> dict[str, Any]:
    """A server with two streams and a consumer that stands still."""

    def stream(name: str, full: float) -> dict[str, Any]:
        return {"stream": name, "messages": 1500, "bytes": 3 << 20, "rate": 12.0, "out_rate": None, "full": full,
                "consumers": 1, "replicas": 3, "behind": []}  # fmt: skip

    consumer = {"stream": "ORDERS", "consumer": HOSTILE, "pending": 1480, "rate": 0.0, "lag_seconds": 90,
                "ack_pending": 20, "redelivered": 0, "trouble": "stands still: no ack comes", "harm": 2}  # fmt: skip
    told = {"place": "nats://127.0.0.1:4222", "at": time.time(), "error": "", "missing": [], "problems": []}
    return told | {"streams": [stream("FULL", 1.0), stream("ORDERS", 0.0)], "consumers": [consumer]} | more


@contextmanager
def with_streams(browser: Browser, told: Told, world: World, *, is_plain: bool) -> Iterator[str]:
    running = serve(world.start(), is_plain=is_plain, jetstream=told)
    try:
        yield running.url
    finally:
        browser.driver.get("about:blank")
        running.stop()
        world.stop()


def test_streams_and_consumers_are_shown_below_the_pipelines_and_names_are_text(browser: Browser) -> None:
    told = Told([server()])
    with with_streams(browser, told, World(ten(), hour=60), is_plain=False) as url:
        browser.open(url)
        shown = browser.see("ORDERS", "#jetstream")
        assert "1 consumer stands still." in shown
        assert "onerror" in shown
        assert browser.driver.title != "taken"
        assert browser.text("h1") == "2 of 10 pipelines need you"
        assert len(browser.all("#jetstream tr.failed")) == 1
        assert len(browser.all("#jetstream tr.behind")) == 1
        told.servers = [server(error="no NATS server answers.", consumers=[])]
        browser.see("no NATS server answers. What you see is from", "#jetstream")
        for width in (360, 700):
            browser.open(url, width=width)
            browser.see("ORDERS", "#jetstream")
            assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off"


def test_a_page_without_pipelines_speaks_of_streams(browser: Browser) -> None:
    with with_streams(browser, Told([server()]), World([], hour=0), is_plain=True) as url:
        browser.open(url)
        browser.see("1 consumer stands still", "h1")
        assert "Queries show up" not in browser.text("main")


def test_without_servers_there_is_no_section_and_nobody_keeps_asking(browser: Browser) -> None:
    told = Told([])
    with with_streams(browser, told, World(ten(), hour=60), is_plain=False) as url:
        browser.open(url)
        wait(lambda: told.asked == 2, "it is asked once more, later")
        assert not browser.one("main").find_element(By.ID, "jetstream").is_displayed()
        time.sleep(4)  # a page that goes on asks every three seconds
        assert told.asked == 2
