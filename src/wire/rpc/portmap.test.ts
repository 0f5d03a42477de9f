import { describe, expect, test } from 'vitest';
import type { RpcClient } from './client.ts';
import { RpcError } from './errors.ts';
import { findPort, getPort, portOf } from './portmap.ts';

const nfsProgram = { program: 100_003, version: 3 };

/** A portmapper that supports only the versions in `answers`. */
function fakePortmapper(answers: Readonly<Record<number, number | string>>): {
  readonly rpc: Pick<RpcClient, 'call'>;
  readonly versions: number[];
} {
  const versions: number[] = [];
  const call = async (procedure: { readonly version: number }): Promise<never> => {
    versions.push(procedure.version);
    const answer = answers[procedure.version];
    if (answer === undefined) throw new RpcError('no such version', { failure: 'unsupported' });
    return answer as never;
  };
  return { rpc: { call }, versions };
}

describe('a portmapper query', () => {
  test('uses version 2 over IPv4 first, and newer versions if that is not supported', async () => {
    const old = fakePortmapper({ 2: 2049, 3: '10.0.0.1.8.1', 4: '10.0.0.1.8.1' });
    expect(await findPort(old.rpc, nfsProgram, 'tcp', {})).toBe(2049);
    expect(old.versions).toEqual([getPort.version]);
    const newer = fakePortmapper({ 4: '10.0.0.1.8.2' });
    expect(await findPort(newer.rpc, nfsProgram, 'tcp', {})).toBe(2050);
    expect(newer.versions).toEqual([2, 3, 4]);
  });

  test('uses only the versions that support IPv6 over IPv6', async () => {
    const { rpc, versions } = fakePortmapper({ 2: 1, 3: '::1.8.1' });
    expect(await findPort(rpc, nfsProgram, 'tcp6', {})).toBe(2049);
    expect(versions).toEqual([4, 3]);
    await expect(findPort(fakePortmapper({ 2: 1 }).rpc, nfsProgram, 'tcp6', {})).rejects.toMatchObject({
      failure: 'unsupported',
    });
  });

  test('returns undefined for a program that is not registered', async () => {
    expect(await findPort(fakePortmapper({ 2: 0 }).rpc, nfsProgram, 'tcp', {})).toBeUndefined();
    expect(await findPort(fakePortmapper({ 4: '' }).rpc, nfsProgram, 'tcp6', {})).toBeUndefined();
  });

  test.each([
    ['127.0.0.1.8.1', 2049],
    ['::1.0.111', 111],
    ['', 0],
    ['1.2.3.4', 772],
    ['x.999.1', 0],
    ['8.1.', 0],
  ])('reads the port of the universal address %j', (address, port) => {
    expect(portOf(address)).toBe(port);
  });
});
