import { describe, expect, test } from 'vitest';
import { eventLayout } from './epoll.ts';
import { openNodeLoop, refuseEdgeTriggered } from './node-loop.ts';

describe("Node's own loop", () => {
  test('has the internals that we need', () => {
    const { fd, sleepMs } = openNodeLoop();
    expect(fd).toBeGreaterThan(2);
    const immediate = setImmediate(() => undefined);
    expect(sleepMs()).toBe(0);
    clearImmediate(immediate);
  });

  test('is refused if it watches edge-triggered descriptors', () => {
    const levelTriggered =
      'pos:\t0\nflags:\t02000002\ntfd:       18 events:       19 data:               12  pos:0 ino:6a sdev:f\n';
    expect(() => refuseEdgeTriggered(levelTriggered)).not.toThrow();
    const edgeTriggered = `${levelTriggered}tfd:       20 events: 80000019 data:               14  pos:0 ino:409 sdev:10\n`;
    expect(() => refuseEdgeTriggered(edgeTriggered)).toThrow('edge-triggered or one-shot');
    expect(() => refuseEdgeTriggered(edgeTriggered.replace('80000019', '40000019'))).toThrow(
      'edge-triggered or one-shot',
    );
  });
});

test('struct epoll_event is packed on x86 and not on other processors', () => {
  expect([eventLayout('x64'), eventLayout('arm64')]).toEqual([
    { size: 12, key: 4 },
    { size: 16, key: 8 },
  ]);
});
