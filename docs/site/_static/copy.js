// A button on each block of code that copies it. Of an interactive session, it copies the input without the prompts.
// Browsers have a clipboard on https:// and localhost only; elsewhere there are no buttons.
function copiedText(block) {
  const text = block.textContent.replace(/\n$/, "");
  if (!/^>>> /m.test(text)) return text;
  const input = text.split("\n").filter((line) => /^(>>>|\.\.\.)( |$)/.test(line));
  return input.map((line) => line.slice(4)).join("\n");
}

function addCopyButton(block) {
  const button = document.createElement("button");
  button.className = "copy";
  button.type = "button";
  button.textContent = "Copy";
  button.setAttribute("aria-label", "Copy the code");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(copiedText(block));
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not copied";  // the browser refuses
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  block.parentElement.append(button);
}

if (typeof document !== "undefined" && navigator.clipboard) {
  document.addEventListener("DOMContentLoaded", () =>
    document.querySelectorAll("div.highlight > pre").forEach(addCopyButton));
}
