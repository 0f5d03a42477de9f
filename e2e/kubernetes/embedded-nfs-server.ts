import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { type ChartFixture, namespace } from './chart-fixture.ts';
import type { NfsCall } from './nfs-caller.ts';

/**
 * The certificates that the chart created, and the embedded NFS server's answers to clients with these certificates.
 */
export interface EmbeddedServer {
  /** All entries of the Secret. */
  certificates(): Promise<Readonly<Record<string, string>>>;
  /** Mounts these paths and returns the results. `nothing`: with TLS, but no certificate. `plain`: without TLS. */
  mountPaths(
    identity: 'client' | 'mount' | 'nothing' | 'plain',
    ...paths: readonly string[]
  ): Promise<Readonly<Record<string, string>>>;
}

export function embeddedServer({ cluster, namespacedKubectl }: ChartFixture): EmbeddedServer {
  const certificates = async (): Promise<Readonly<Record<string, string>>> => {
    const { data } = JSON.parse(await namespacedKubectl('get', 'secret', 'stowage-nfs-tls', '--output=json'));
    const texts = Object.entries<string>(data).map(([key, text]) => [key, Buffer.from(text, 'base64').toString()]);
    return Object.fromEntries(texts);
  };
  return {
    certificates,
    mountPaths: async (identity, ...paths) => {
      const { 'ca.crt': ca = '', [`${identity}.crt`]: cert, [`${identity}.key`]: key } = await certificates();
      const credential = cert === undefined || key === undefined ? {} : { cert, key };
      const tls = { servername: `stowage-nfs.${namespace}.svc`, ca, ...credential };
      const host = await namespacedKubectl('get', 'pod', 'stowage-nfs-0', '--output=jsonpath={.status.podIP}');
      const nfsCall: NfsCall = { host, paths, ...(identity === 'plain' ? {} : { tls }) };
      const [first, ...inside] = cluster.network.inside;
      const words = [...inside, process.execPath, join(import.meta.dirname, 'nfs-caller.ts'), JSON.stringify(nfsCall)];
      return JSON.parse((await promisify(execFile)(first, words, { timeout: 60_000 })).stdout);
    },
  };
}
