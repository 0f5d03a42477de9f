/** Those below 1024 that no well-known service has. */
const privileged = { first: 665, last: 1023 } as const;

/** The next of the ports that servers trust: one that was in use a moment ago cannot be used again at once. */
export function createPrivilegedPorts(): () => number {
  const count = privileged.last - privileged.first + 1;
  let next = Math.floor(Math.random() * count);
  return () => privileged.first + (next++ % count);
}
