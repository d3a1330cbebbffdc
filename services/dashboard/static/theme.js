// Before the first paint, so that a page in the chosen colours never flashes in the others.
document.documentElement.dataset.theme = localStorage.getItem('apportion.theme') ?? 'auto';
