import { describe, expect, test } from 'vitest';
import type { RpcClient } from './client.ts';
import { RpcError } from './errors.ts';
import { findPort, getPort, portOf } from './portmap.ts';

const wanted = { program: 100_003, version: 3 };

/** A portmapper that speaks only some versions. */
function speaking(answers: Readonly<Record<number, number | string>>): {
  readonly rpc: Pick<RpcClient, 'call'>;
  readonly asked: number[];
} {
  const asked: number[] = [];
  const call = async (procedure: { readonly version: number }): Promise<never> => {
    asked.push(procedure.version);
    const answer = answers[procedure.version];
    if (answer === undefined) throw new RpcError('no such version', { failure: 'unsupported' });
    return answer as never;
  };
  return { rpc: { call }, asked };
}

describe('asking for a port', () => {
  test('over IPv4 in the oldest way, which all speak, and in newer ones where not', async () => {
    const old = speaking({ 2: 2049, 3: '10.0.0.1.8.1', 4: '10.0.0.1.8.1' });
    expect(await findPort(old.rpc, wanted, 'tcp', {})).toBe(2049);
    expect(old.asked).toEqual([getPort.version]);
    const newer = speaking({ 4: '10.0.0.1.8.2' });
    expect(await findPort(newer.rpc, wanted, 'tcp', {})).toBe(2050);
    expect(newer.asked).toEqual([2, 3, 4]);
  });

  test('over IPv6 only in the ways that know it', async () => {
    const { rpc, asked } = speaking({ 2: 1, 3: '::1.8.1' });
    expect(await findPort(rpc, wanted, 'tcp6', {})).toBe(2049);
    expect(asked).toEqual([4, 3]);
    await expect(findPort(speaking({ 2: 1 }).rpc, wanted, 'tcp6', {})).rejects.toMatchObject({
      failure: 'unsupported',
    });
  });

  test('a program that is not there', async () => {
    expect(await findPort(speaking({ 2: 0 }).rpc, wanted, 'tcp', {})).toBeUndefined();
    expect(await findPort(speaking({ 4: '' }).rpc, wanted, 'tcp6', {})).toBeUndefined();
  });

  test.each([
    ['127.0.0.1.8.1', 2049],
    ['::1.0.111', 111],
    ['', 0],
    ['1.2.3.4', 772],
    ['x.999.1', 0],
    ['8.1.', 0],
  ])('the port of %j', (address, port) => {
    expect(portOf(address)).toBe(port);
  });
});
