import { checked, foreign } from './libc.ts';

const calls = foreign({
  pair: 'int socketpair(int family, int type, int protocol, _Out_ int *both)',
  control: 'int fcntl(int fd, int command, int64_t value)',
});

const unix = 1;
const stream = 1;
const seqpacket = 5;
const cloexec = 0o2000000;
const nonblock = 0o4000;
const duplicateTo = 1030;

/** For messages with descriptors (`descriptor-sockets.ts`). */
export const socketPair = (): readonly [number, number] => pairOf(seqpacket);

/** For byte streams: non-blocking, as Node's sockets require. */
export const streamPair = (): readonly [number, number] => pairOf(stream | nonblock);

function pairOf(type: number): readonly [number, number] {
  const both = [0, 0];
  checked('socketpair', calls().pair(unix, type | cloexec, 0, both));
  return both as unknown as readonly [number, number];
}

/** Duplicates the descriptor. The copy is close-on-exec. */
export const duplicate = (fd: number): number => checked('fcntl', calls().control(fd, duplicateTo, 3));
