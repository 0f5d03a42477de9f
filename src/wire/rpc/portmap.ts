import type { CallOptions, RpcClient } from './client.ts';
import { RpcError } from './errors.ts';
import type { Procedure } from './procedure.ts';

export const portmapPort = 111;
export const portmapProgram = 100000;
/** The protocol number of TCP in version 2. */
export const tcpProtocol = 6;
const maxUniversalAddressBytes = 128;

interface ProgramVersion {
  readonly program: number;
  readonly version: number;
}

/** RFC 1833, section 3: the port of a program on TCP over IPv4; 0 if it is not registered. */
export const getPort: Procedure<ProgramVersion, number> = {
  program: portmapProgram,
  version: 2,
  number: 3,
  name: 'PMAP GETPORT',
  encode: (writer, wanted) => {
    writer.u32(wanted.program).u32(wanted.version).u32(tcpProtocol).u32(0);
    return undefined;
  },
  decode: (reader) => reader.u32(),
};

/** RFC 1833, section 2: the address of a program on any network; empty if it is not registered. */
const getAddress = (version: 3 | 4): Procedure<ProgramVersion & { readonly network: string }, string> => ({
  program: portmapProgram,
  version,
  number: 3,
  name: `RPCB GETADDR v${version}`,
  encode: (writer, wanted) => {
    writer.u32(wanted.program).u32(wanted.version).string(wanted.network).string('').string('');
    return undefined;
  },
  decode: (reader) => reader.string(maxUniversalAddressBytes),
});

/** A universal address ends in the two bytes of the port: `10.0.0.1.8.1` is port 2049. */
export function portOf(universalAddress: string): number {
  const match = /\.(\d{1,3})\.(\d{1,3})$/.exec(universalAddress);
  const [high, low] = [Number(match?.[1] ?? 0), Number(match?.[2] ?? 0)];
  return high > 255 || low > 255 ? 0 : high * 256 + low;
}

/** Asks a portmapper, with the versions that suit the network. Undefined: the program is not registered. */
export async function findPort(
  portmapper: Pick<RpcClient, 'call'>,
  wanted: ProgramVersion,
  network: 'tcp' | 'tcp6',
  options: CallOptions,
): Promise<number | undefined> {
  const queries = [
    async () => portOf(await portmapper.call(getAddress(4), { ...wanted, network }, options)),
    async () => portOf(await portmapper.call(getAddress(3), { ...wanted, network }, options)),
    async () => await portmapper.call(getPort, wanted, options),
  ];
  // Version 2 has no networks, and every IPv4 server supports it.
  const usableQueries = network === 'tcp' ? queries.reverse() : queries.slice(0, 2);
  let failure: unknown;
  for (const query of usableQueries) {
    try {
      return (await query()) || undefined;
    } catch (cause) {
      if (!(cause instanceof RpcError) || cause.failure !== 'unsupported') throw cause;
      failure = cause;
    }
  }
  throw failure;
}
