import { expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { XdrReader } from '../xdr/reader.ts';
import { type DispatchContext, dispatch, programsByNumber } from './dispatch.ts';
import { createReplayCache } from './replay-cache.ts';

test('never returns the cached reply of one certificate to a caller with another one', async () => {
  const executedFor: (string | undefined)[] = [];
  const handle = (_: XdrReader, { certificate }: { certificate?: string | undefined }) => {
    executedFor.push(certificate);
    return () => undefined;
  };
  const procedures = new Map([[1, { name: 'CREATE', nonIdempotent: true, handle }]]);
  const context: DispatchContext = {
    programs: programsByNumber([{ number: 100, version: 3, procedures }]),
    replays: createReplayCache(systemClock()),
    frequentReplays: createReplayCache(systemClock()),
    replaysByPort: false,
    isAllowed: () => true,
    onError: () => undefined,
  };
  const callAs = (certificate?: string) => {
    const sent = Buffer.alloc(8);
    const reader = new XdrReader().reset(sent, new DataView(sent.buffer, sent.byteOffset, 8), 0, 8);
    const caller = { address: '10.0.0.1', port: 700, identity: undefined, isEncrypted: true, certificate };
    const call = { xid: 1, rpcVersion: 2, program: 100, version: 3, procedure: 1, isTlsProbe: false, caller };
    return dispatch(call, reader, context);
  };
  for (const certificate of ['agent', 'agent', 'keeper', undefined, 'keeper', undefined]) await callAs(certificate);
  expect(executedFor).toEqual(['agent', 'keeper', undefined]);
});
