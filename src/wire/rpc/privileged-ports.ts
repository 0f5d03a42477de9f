/** A range of ports below 1024 that well-known services rarely use. */
const privileged = { first: 665, last: 1023 } as const;

/** Returns privileged ports in turn: a port that was just in use cannot be used again at once. */
export function createPrivilegedPorts(): () => number {
  const count = privileged.last - privileged.first + 1;
  let next = Math.floor(Math.random() * count);
  return () => privileged.first + (next++ % count);
}
