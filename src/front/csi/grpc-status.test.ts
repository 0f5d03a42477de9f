import { expect, test } from 'vitest';
import { StowageError } from '#core/errors.ts';
import { collectingLog } from '#testing/calls.ts';
import { statusReporter } from './grpc-status.ts';

const call = { signal: new AbortController().signal, method: '/csi.v1.Node/NodeStageVolume' };

test('what is for everybody is told in full', () => {
  const error = new StowageError("there is no volume 'x'.", {
    code: 'not-found',
    reason: 'volume-unknown',
    action: 'See what there is: stowage volume list',
  });
  const log = collectingLog();
  expect(statusReporter(log)(error, call)).toEqual({
    code: 5,
    message: "there is no volume 'x'. See what there is: stowage volume list",
  });
  expect(log.lines).toHaveLength(1);
});

test('how a store is reached is for the log', () => {
  const error = new StowageError('no NFS server answered at 10.0.0.1:2049', {
    code: 'unavailable',
    reason: 'nfs-refused',
    action: 'Check the port',
  });
  const log = collectingLog();
  const { code, message } = statusReporter(log)(error, call);
  expect(code).toBe(14);
  expect(message).not.toContain('10.0.0.1');
  expect(log.lines[0]).toContain('no NFS server answered at 10.0.0.1:2049');
});

test('a fault of ours says no more than that', () => {
  const log = collectingLog();
  expect(statusReporter(log)(new TypeError('x is not a function'), call)).toEqual({
    code: 13,
    message: "Stowage failed to do this. Look why in the log of Stowage's server, and report it.",
  });
  expect(log.lines[0]).toContain('error a call of CSI failed');
});

test('published at that path in another way is AlreadyExists', () => {
  const error = new StowageError('x', { code: 'conflict', reason: 'target-taken', action: 'y' });
  expect(statusReporter(collectingLog())(error, call).code).toBe(6);
});
