/* A slider of the book: picture, alt text and sentence of the state that it stands at. */
document.querySelectorAll("figure.explorer").forEach((figure) => {
  const [slider, value, image, status, states] = [
    "input", "output", "img", "figcaption", "script",
  ].map((part) => figure.querySelector(part));
  const shown = JSON.parse(states.textContent);
  const move = () => {
    const state = shown[slider.value];
    slider.setAttribute("aria-valuetext", state.value);
    value.textContent = state.value;
    image.src = state.src;
    image.alt = state.alt;
    status.textContent = state.status;
  };
  slider.addEventListener("input", move);
  move(); // a browser may have kept the place of the last visit
  shown.forEach((state) => { new Image().src = state.src; }); // so that a move need not wait
});
