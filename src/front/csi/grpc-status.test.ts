import { expect, test } from 'vitest';
import { StowageError } from '#core/errors.ts';
import { collectingLog } from '#testing/core-calls.ts';
import { statusReporter } from './grpc-status.ts';

const call = { signal: new AbortController().signal, method: '/csi.v1.Node/NodeStageVolume' };

test('a message that everybody may see is complete', () => {
  const error = new StowageError("there is no volume 'x'.", {
    code: 'not-found',
    reason: 'volume-unknown',
    action: 'List the volumes: stowage volume list',
  });
  const log = collectingLog();
  expect(statusReporter(log)(error, call)).toEqual({
    code: 5,
    message: "there is no volume 'x'. List the volumes: stowage volume list",
  });
  expect(log.lines).toHaveLength(1);
});

test('store addresses are only in the log', () => {
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

test('an internal error hides its details', () => {
  const log = collectingLog();
  expect(statusReporter(log)(new TypeError('x is not a function'), call)).toEqual({
    code: 13,
    message: "internal error of Stowage. Find the cause in the log of Stowage's server, and report it.",
  });
  expect(log.lines[0]).toContain('error CSI call failed');
});

test('a target that is published with other options is ALREADY_EXISTS', () => {
  const error = new StowageError('x', { code: 'conflict', reason: 'target-taken', action: 'y' });
  expect(statusReporter(collectingLog())(error, call).code).toBe(6);
});
