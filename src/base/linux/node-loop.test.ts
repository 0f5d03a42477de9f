import { describe, expect, test } from 'vitest';
import { eventLayout } from './epoll.ts';
import { checkLevels, openNodeLoop } from './node-loop.ts';

describe("Node's own loop", () => {
  test('is as it has to be', () => {
    const { fd, sleepMs } = openNodeLoop();
    expect(fd).toBeGreaterThan(2);
    const soon = setImmediate(() => undefined);
    expect(sleepMs()).toBe(0);
    clearImmediate(soon);
  });

  test('one that is told only once of what is ready is not taken', () => {
    const usual =
      'pos:\t0\nflags:\t02000002\ntfd:       18 events:       19 data:               12  pos:0 ino:6a sdev:f\n';
    expect(() => checkLevels(usual)).not.toThrow();
    const edge = `${usual}tfd:       20 events: 80000019 data:               14  pos:0 ino:409 sdev:10\n`;
    expect(() => checkLevels(edge)).toThrow('only once');
    expect(() => checkLevels(edge.replace('80000019', '40000019'))).toThrow('only once');
  });
});

test('what the kernel tells of a descriptor is packed on one kind of processor, and not on others', () => {
  expect([eventLayout('x64'), eventLayout('arm64')]).toEqual([
    { size: 12, key: 4 },
    { size: 16, key: 8 },
  ]);
});
