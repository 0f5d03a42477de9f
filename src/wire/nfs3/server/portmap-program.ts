import { portmapProgram, tcpProtocol } from '../../rpc/portmap.ts';
import type { Reply, ServedProcedure, ServedProgram } from '../../rpc/server.ts';
import type { XdrReader } from '../../xdr/reader.ts';

const maxNetworkNameBytes = 256;

/** A registered program and its port. */
export interface RegisteredProgram {
  readonly program: number;
  readonly version: number;
  readonly port: number;
}

const emptyReply: Reply = () => undefined;

/**
 * A portmapper (RFC 1833): version 2, and the parts of versions 3 and 4 that clients use. Its list is fixed: no client can
 * register a program.
 */
export function createPortmapPrograms(registered: () => readonly RegisteredProgram[]): readonly ServedProgram[] {
  const portOf = (program: number, version: number): number => {
    const candidates = registered().filter((one) => one.program === program);
    return (candidates.find((one) => one.version === version) ?? candidates[0])?.port ?? 0;
  };

  const getPort = (reader: XdrReader): Reply => {
    const [program, version, protocol] = [reader.u32(), reader.u32(), reader.u32()];
    reader.u32();
    const port = protocol === tcpProtocol ? portOf(program, version) : 0;
    return (writer) => void writer.u32(port) as undefined;
  };

  const dump = (): Reply => (writer) => {
    for (const { program, version, port } of registered())
      writer.bool(true).u32(program).u32(version).u32(tcpProtocol).u32(port);
    writer.bool(false);
    return undefined;
  };

  /** A universal address. Clients take only the port from it, and keep the host that they asked. */
  const universalAddress = (network: string, port: number): string => {
    const any = network === 'tcp' ? '0.0.0.0' : network === 'tcp6' ? '::' : undefined;
    return any === undefined || port === 0 ? '' : `${any}.${port >> 8}.${port & 0xff}`;
  };

  const getAddress = (reader: XdrReader): Reply => {
    const [program, version] = [reader.u32(), reader.u32()];
    const network = reader.string(maxNetworkNameBytes);
    const address = universalAddress(network, portOf(program, version));
    return (writer) => void writer.string(address) as undefined;
  };

  const dumpAddresses = (): Reply => (writer) => {
    for (const { program, version, port } of registered())
      for (const network of ['tcp', 'tcp6'])
        writer
          .bool(true)
          .u32(program)
          .u32(version)
          .string(network)
          .string(universalAddress(network, port))
          .string('superuser');
    writer.bool(false);
    return undefined;
  };

  const program = (version: number, get: typeof getPort, list: typeof dump): ServedProgram => ({
    number: portmapProgram,
    version,
    procedures: new Map<number, ServedProcedure>([
      [0, { name: 'PMAP NULL', handle: () => emptyReply }],
      [3, { name: 'PMAP GET', handle: get }],
      [4, { name: 'PMAP DUMP', handle: list }],
    ]),
  });
  return [program(2, getPort, dump), program(3, getAddress, dumpAddresses), program(4, getAddress, dumpAddresses)];
}
