"""The report in a real browser: nothing cut, no error, by keyboard too."""

import json

import pytest
from support.tiny_runs import make_config, make_texts, save_models, write_jsonl

from longctx_jax.evaluation import run as run_lib
from longctx_jax.report import run_page

pytestmark = pytest.mark.browser

# Elements whose text is wider than they are, and which do not scroll.
CUT = """
return [...document.querySelectorAll("main *")].filter((one) => {
  const style = getComputedStyle(one);
  if (one.closest("svg, .page, .track, details") || style.display === "none")
    return false;
  const box = one.getBoundingClientRect();
  return box.width && (box.right > innerWidth + 1 || box.left < -1 ||
    (one.scrollWidth > one.clientWidth + 1 && style.display !== "inline"));
}).map((one) => one.outerHTML.slice(0, 120));
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
  folder = tmp_path_factory.mktemp("browser")
  save_models(folder, ["m0", "m1", "m2"])
  path = write_jsonl(folder / "corpus.jsonl", make_texts(5, num_words=120))
  config = make_config(data__sources=(path,), evaluator=str(folder / "m0"))
  long_name = "a-fine-tuned-run-whose-name-goes-on-and-on"
  config.models = (
    str(folder / "m1"), f"{long_name}={folder / 'm2'}", str(folder / "m9"),
  )  # fmt: skip
  run_lib.evaluate(config, workdir=folder / "eval")
  return run_page.write(str(folder / "eval"))


@pytest.fixture(params=[(1400, "light"), (1400, "dark"), (400, "light"),
                        (400, "dark")], ids=str)  # fmt: skip
def browser(request, report):
  from selenium import webdriver

  width, scheme = request.param
  options = webdriver.ChromeOptions()
  for word in ("--headless=new", "--no-sandbox", "--disable-gpu"):
    options.add_argument(word)
  options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
  driver = webdriver.Chrome(
    options, webdriver.ChromeService("/usr/bin/chromedriver")
  )
  try:
    # A window can't be narrower than 500 pixels; a screen can.
    driver.execute_cdp_cmd(
      "Emulation.setDeviceMetricsOverride",
      dict(width=width, height=900, deviceScaleFactor=1, mobile=False),
    )
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd(
      "Emulation.setEmulatedMedia", {"features": [feature]}
    )
    driver.get(f"file://{report}")
    driver.scheme, driver.width = scheme, width
    yield driver
  finally:
    driver.quit()


def test_nothing_is_cut_and_the_console_is_silent(browser):
  assert browser.execute_script("return innerWidth") == browser.width
  assert browser.execute_script(CUT) == []
  wide = "return document.documentElement.scrollWidth"
  assert browser.execute_script(wide) <= browser.width
  assert browser.get_log("browser") == []


def test_it_is_dark_where_that_is_asked_for(browser):
  colour = browser.execute_script(
    "return getComputedStyle(document.body).backgroundColor"
  )
  red = int(colour.removeprefix("rgb(").split(",")[0])
  assert (red < 64) == (browser.scheme == "dark")


def test_the_sliders_work_by_keyboard(browser):
  from selenium.webdriver.common.by import By
  from selenium.webdriver.common.keys import Keys

  grid = json.loads(
    browser.find_element(By.ID, "grid").get_attribute("textContent")
  )

  def shown():
    cells = browser.find_elements(By.CSS_SELECTOR, "#sweep td:nth-child(3)")
    return sorted(int(cell.text.split()[-1].replace(",", "")) for cell in cells)

  def expected(a):
    b = grid["at"][1]
    return sorted(cell[4] for cell in grid["cells"] if cell[:2] == [a, b])

  a = grid["at"][0]
  assert shown() == expected(a)
  browser.find_element(By.ID, "alpha").send_keys(Keys.ARROW_RIGHT)
  assert shown() == expected(a + 1) != expected(a)


def test_a_button_leads_to_the_next_key_token(browser):
  from selenium.webdriver.common.by import By
  from selenium.webdriver.common.keys import Keys

  button = browser.find_element(By.CSS_SELECTOR, 'button[data-step="1"]')
  button.send_keys(Keys.ENTER)
  here = browser.find_elements(By.CSS_SELECTOR, ".text .here")
  assert len(here) == 1 and here[0].tag_name == "b"
