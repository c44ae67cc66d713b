'use strict';
const tip = document.getElementById('tip');
for (const hit of document.querySelectorAll('.hit')) {
  const title = hit.querySelector('title');
  const text = title.textContent;
  hit.addEventListener('pointermove', e => {
    title.textContent = ''; // ours instead of the browser's
    tip.textContent = text;
    tip.hidden = false;
    tip.style.left = Math.min(e.clientX + 14, innerWidth - tip.offsetWidth - 8) + 'px';
    tip.style.top = (e.clientY + 14) + 'px';
  });
  hit.addEventListener('pointerleave', () => { tip.hidden = true; title.textContent = text; });
}
for (const box of document.querySelectorAll('.legend input')) {
  box.addEventListener('change', () => {
    const figure = box.closest('figure');
    for (const g of figure.querySelectorAll('.plot [data-line="' + box.dataset.line + '"]')) g.classList.toggle('off', !box.checked);
  });
}
// Paper has nothing to click: what is folded is printed, too.
let folded = [];
addEventListener('beforeprint', () => {
  folded = [...document.querySelectorAll('details:not([open])')];
  for (const d of folded) d.open = true;
});
addEventListener('afterprint', () => { for (const d of folded) d.open = false; });
