"""How well what is on a page can be told from what lies behind it."""

from __future__ import annotations

from playwright.sync_api import Page


def contrasts(page: Page, selector: str, ink: str = "color") -> list[float]:
    """Of the colour in a property, "color" for text, and what lies behind it, as in WCAG 2.2."""
    found: list[float] = page.evaluate(
        """([selector, ink]) => {
          const pen = Object.assign(document.createElement("canvas"), { width: 1, height: 1 })
            .getContext("2d", { willReadFrequently: true });
          const style = (e) => getComputedStyle(e);
          const behind = (e) => (e ? [...behind(e.parentElement), style(e).backgroundColor] : []);
          const linear = (x) => (x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4);
          const known = new Map();  // pages have few colours, and a pixel is slow to read
          const luminance = (...colors) => {
            const all = ["white", ...colors];
            const key = all.join(";");
            if (!known.has(key)) known.set(key, painted(all));
            return known.get(key);
          };
          const painted = (colors) => {
            for (const color of colors) {
              pen.fillStyle = color;
              pen.fillRect(0, 0, 1, 1);
            }
            const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map((x) => linear(x / 255));
            return .2126 * r + .7152 * g + .0722 * b;
          };
          const shown = [...document.querySelectorAll(selector)]
            .filter((e) => e.getClientRects().length);
          return shown.map((e) => {
            const back = luminance(...behind(e)), fore = luminance(...behind(e), style(e)[ink]);
            return (Math.max(back, fore) + .05) / (Math.min(back, fore) + .05);
          });
        }""",
        [selector, ink],
    )
    assert found
    return found
