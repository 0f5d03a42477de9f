import { checkResult, lazyBindings } from './libc.ts';

const calls = lazyBindings({
  pair: 'int socketpair(int family, int type, int protocol, _Out_ int *both)',
  control: 'int fcntl(int fd, int command, int64_t value)',
});

const afUnix = 1;
const sockStream = 1;
const sockSeqpacket = 5;
const sockCloexec = 0o2000000;
const sockNonblock = 0o4000;
const fDupfdCloexec = 1030;

/** For messages with descriptors (`descriptor-sockets.ts`). */
export const socketPair = (): readonly [number, number] => pairOf(sockSeqpacket);

/** For byte streams: non-blocking, as Node's sockets require. */
export const streamPair = (): readonly [number, number] => pairOf(sockStream | sockNonblock);

function pairOf(type: number): readonly [number, number] {
  const both = [0, 0];
  checkResult('socketpair', calls().pair(afUnix, type | sockCloexec, 0, both));
  return both as unknown as readonly [number, number];
}

/** Duplicates the descriptor. The copy is close-on-exec. */
export const duplicate = (fd: number): number => checkResult('fcntl', calls().control(fd, fDupfdCloexec, 3));
