// Before anything is drawn, so that a page that is meant to be dark never flashes.
const chosen = localStorage.getItem("penstock-theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
