// Which section is being read.

if (typeof IntersectionObserver === "function") {
  const links = new Map([...document.querySelectorAll("#nav a")].map((link) => [link.hash.slice(1), link]));
  const watch = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) {
      if (!isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(target.id).setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-30% 0px -65% 0px" });
  links.forEach((_, id) => watch.observe($(id)));
}
