import { stat } from 'node:fs/promises';
import { hostname } from 'node:os';
import { basename } from 'node:path';
import type { NfsServed, NfsServeOptions } from '#cli/io.ts';
import type { NfsServer } from '#wire/nfs3/server/server.ts';
import type { NfsPlan } from './nfs-plan.ts';
import type { ServedTls } from './nfs-tls.ts';

/** The description that is printed when the server runs. */
export async function describeServed(
  plan: NfsPlan,
  options: NfsServeOptions,
  { host, port, portmapPort }: NfsServer,
): Promise<NfsServed> {
  const { directory, path, tls } = plan;
  return {
    directory,
    host,
    port,
    path,
    portmapper: portmapPort ?? null,
    uri: nfsUri(reachableHost(host), path, port) + requiredOptions(plan, options),
    name: storeNameFor(directory),
    about: {
      who: describeClients(plan, options),
      as: describeIdentity(plan),
      ...(options.readOnly ? { writing: 'refused: read-only' } : {}),
      ...(tls === undefined ? {} : { tls: tlsLine(tls) }),
      ...(options.tlsConfine.length === 0 ? {} : { confined: options.tlsConfine.join(', ') }),
      ...(portmapPort === undefined ? {} : { portmap: `port ${portmapPort}` }),
      state: plan.state,
    },
    notes: [...(tls?.notes ?? []), ...(await squashNote(plan, options))],
  };
}

export function nfsUri(host: string, path: string, port: number): string {
  const at = host.includes(':') ? `[${host}]` : host;
  return `nfs://${at}${path.split('/').map(encodeURIComponent).join('/')}?port=${port}&mountport=${port}`;
}

/** The options that a store for this server needs. If clients need a certificate, `/FOLDER` stands for its path on the client. */
function requiredOptions({ tls }: NfsPlan, { privilegedPorts }: NfsServeOptions): string {
  const encrypted = tls?.required === true ? `&tls=${tls.options.requestCert === true ? '/FOLDER' : 'on'}` : '';
  return `${privilegedPorts ? '&sourceport=privileged' : ''}${encrypted}`;
}

/** The name by which other machines know this one, if it listens on all addresses. */
const reachableHost = (host: string): string => (['::', '0.0.0.0'].includes(host) ? hostname() : host);

function storeNameFor(directory: string): string {
  const name = basename(directory);
  return /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/.test(name) ? name : 'network';
}

function describeClients({ isOwnOnly, networks, tls }: NfsPlan, { privilegedPorts }: NfsServeOptions): string {
  if (isOwnOnly) {
    const who =
      process.geteuid?.() === 0 ? "root's processes, and Stowage's data path," : "your own processes, and root's,";
    return `${who} on this host; to admit others, add: --allow 192.168.1.0/24`;
  }
  return [
    networks.length === 0 ? 'every host that can reach it' : networks.join(', '),
    ...(tls?.options.requestCert === true ? ['with a certificate'] : []),
    ...(privilegedPorts ? ['from a port below 1024'] : []),
  ].join(', ');
}

function tlsLine({ required, options }: ServedTls): string {
  if (!required) return 'offered, not required';
  const files = options.requestCert === true ? 'ca.pem, client.pem and client.key' : 'ca.pem';
  return `required; if a client's system does not trust the certificate, set tls=/FOLDER in its store, to a folder with ${files}`;
}

function describeIdentity({ squash, anonymous }: NfsPlan): string {
  const uid = process.geteuid?.() ?? 0;
  if (uid !== 0) return `every request runs as the user of the server, ${uid}`;
  const to = `${anonymous.uid}:${anonymous.gid}`;
  if (squash === 'none') return 'the user that the client sends, including root';
  return squash === 'all' ? `every user is mapped to ${to}` : `the user that the client sends; root is mapped to ${to}`;
}

/** Warns if root of a Stowage that uses this server could not create volumes. */
async function squashNote(plan: NfsPlan, { readOnly }: NfsServeOptions): Promise<string[]> {
  const { squash, anonymous, directory } = plan;
  if (squash === 'none' || readOnly || process.geteuid?.() !== 0) return [];
  const { uid, gid, mode } = await stat(directory);
  const shift = uid === anonymous.uid ? 6 : gid === anonymous.gid ? 3 : 0;
  const needed = 0o3;
  if (((mode >> shift) & needed) === needed) return [];
  const who = squash === 'all' ? 'every user' : 'root of its clients';
  return [
    `${who} is mapped to ${anonymous.uid}:${anonymous.gid}, which cannot write to ${directory}: a store on it cannot create volumes. Run: chown ${anonymous.uid}:${anonymous.gid} ${directory}; or, if you trust the clients, add: --squash none`,
  ];
}
