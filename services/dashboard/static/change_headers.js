// What a change says in its headers.

// Headers carry no other letters; what has none of its own becomes a question mark.
const latin = (text) => text.replace(/[^\x20-\x7e\xa0-\xff]/g, '?');

// Of the change that was tried (the answer to it): if somebody was first since then, it is refused. Where there is no
// version yet (0), there is nobody to be first.
export function headersOf(tried, reason) {
  const version = tried?.body?.made_from;
  return {
    ...(reason === '' ? {} : { 'Apportion-Reason': latin(reason) }),
    ...(version > 0 ? { 'If-Match': `"${version}"` } : {}),
  };
}
