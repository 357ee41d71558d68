// @ts-check
// Detects a dark theme of JupyterLab, VS Code, another notebook, or the system.

const SYSTEM = "(prefers-color-scheme: dark)";
const ON_BODY = ["data-jp-theme-light", "data-vscode-theme-kind", "class"];
const ON_ROOT = ["data-theme", "class"];

export function isDark() {
  const { body, documentElement: root } = document;
  if (body.dataset.jpThemeLight) return body.dataset.jpThemeLight === "false";
  if (body.dataset.vscodeThemeKind) return body.dataset.vscodeThemeKind.includes("dark");
  if (root.dataset.theme) return root.dataset.theme === "dark";
  if (root.classList.contains("dark") || body.classList.contains("dark")) return true;
  return window.matchMedia(SYSTEM).matches;
}

/**
 * Calls `changed` whenever the theme may have changed.
 * @param {() => void} changed
 * @returns a function that stops calling it
 */
export function watchTheme(changed) {
  const watch = new MutationObserver(changed);
  watch.observe(document.body, { attributes: true, attributeFilter: ON_BODY });
  watch.observe(document.documentElement, { attributes: true, attributeFilter: ON_ROOT });
  const system = window.matchMedia(SYSTEM);
  system.addEventListener("change", changed);
  return () => {
    watch.disconnect();
    system.removeEventListener("change", changed);
  };
}
