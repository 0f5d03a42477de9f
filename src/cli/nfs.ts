import { Option } from 'commander';
import { parseNumberArgument } from './arguments.ts';
import { collect, type StowageCommand } from './command.ts';
import type { NfsMapping, NfsServed, NfsServeOptions } from './io.ts';
import { invalid } from './problem.ts';
import type { MakeAction, Session } from './session.ts';
import { escapeControls, shellWord } from './text.ts';

/** The options as commander parses them. */
interface NfsServeFlags {
  readonly port?: string;
  readonly host?: string;
  readonly path?: string;
  readonly allow?: readonly string[];
  readonly privilegedPorts?: boolean;
  readonly squash?: NfsServeOptions['squash'];
  readonly anonUid?: string;
  readonly anonGid?: string;
  readonly mapUid?: readonly string[];
  readonly mapGid?: readonly string[];
  readonly readOnly?: boolean;
  readonly async?: boolean;
  readonly tlsCert?: string;
  readonly tlsKey?: string;
  readonly tlsCa?: string;
  readonly tlsConfine?: readonly string[];
  readonly tlsOptional?: boolean;
  readonly portmapper?: string;
  readonly state?: string;
}

export function addNfsCommands(program: StowageCommand, act: MakeAction): void {
  const nfs = program
    .command('nfs')
    .description('Run the built-in NFS server.')
    .example('stowage nfs serve /srv/data', 'export a directory');
  const serve = nfs
    .command('serve')
    .description(
      'Export a directory over NFS version 3 until Ctrl-C. Works without a Stowage server. Without --allow, only processes of the same user and of root on this host may connect.',
    )
    .argument('<dir>', 'directory to export, with its whole tree on one file system')
    .option('--port <port>', 'TCP port for NFS and MOUNT; 0 selects a free port (default: 2049)')
    .option(
      '--host <address>',
      'address to listen on (default: 127.0.0.1, or ::1 if --allow permits only that; all addresses if --allow permits others)',
    )
    .option('--path <export>', 'export path that clients mount (default: /export)')
    .option('--allow <network>', 'network or address that may connect, e.g. 10.0.0.0/8 (repeatable)', collect)
    .option(
      '--privileged-ports',
      'accept only clients with a source port below 1024, which only root of their host can use',
    );
  addIdentities(serve)
    .option('--read-only', 'export the directory read-only')
    .option('--async', 'reply before names and attributes are on disk: faster, but a power failure can lose them')
    .option('--tls-cert <file>', 'certificate for RPC-with-TLS; clients must then use TLS')
    .option('--tls-key <file>', 'private key of the certificate')
    .option('--tls-ca <file>', 'require a client certificate that this CA has signed')
    .option(
      '--tls-confine <name>',
      'clients with this common name in their certificate can only use volumes whose file handles they received: they cannot mount the export or reach .stowage; requires --tls-ca (repeatable)',
      collect,
    )
    .option('--tls-optional', 'also accept clients without TLS')
    .option(
      '--portmapper <port>',
      'also run a portmapper on this port, for clients that query one (usually on port 111)',
    )
    .option('--state <dir>', 'folder for the file handle secret (default: in the state folder)')
    .example('stowage nfs serve /srv/data', 'for processes of this user on this host')
    .example(
      'stowage nfs serve /srv/data --allow 192.168.1.0/24 --squash all',
      'for a network; maps every user to the anonymous user',
    )
    .example('stowage nfs serve /srv/data --read-only --port 0', 'read-only, on a free port')
    .action(
      act((session: Session, directory: string, flags: NfsServeFlags) => serveDirectory(session, directory, flags)),
    );
}

function addIdentities(serve: StowageCommand): StowageCommand {
  return serve
    .addOption(
      new Option('--squash <who>', 'users to map to the anonymous user (default: root; none without --allow)').choices([
        'root',
        'all',
        'none',
      ]),
    )
    .option('--anon-uid <uid>', 'uid of the anonymous user (default: 65534)')
    .option('--anon-gid <gid>', 'gid of the anonymous user (default: 65534)')
    .option('--map-uid <client:host>', 'map a uid of the clients to a uid of this host (repeatable)', collect)
    .option('--map-gid <client:host>', 'map a gid of the clients to a gid of this host (repeatable)', collect);
}

const maxId = 4_294_967_294;
const optional = <K extends string, T>(key: K, value: T | undefined): { [P in K]?: T } =>
  value === undefined ? {} : ({ [key]: value } as { [P in K]?: T });

function optionalNumber<K extends string>(
  key: K,
  flag: string,
  text: string | undefined,
  to: number,
): { [P in K]?: number } {
  return text === undefined ? {} : optional(key, parseNumberArgument(flag, text, { from: 0, to }));
}

function parseMappings(flag: string, texts: readonly string[] = []): readonly NfsMapping[] {
  return texts.map((text) => {
    const [, client, here] = /^(\d{1,10}):(\d{1,10})$/.exec(text) ?? [];
    if (Number(client) <= maxId && Number(here) <= maxId) return { client: Number(client), here: Number(here) };
    throw invalid(
      `'${escapeControls(text)}' is not a valid mapping for ${flag}`,
      'nfs-mapping-invalid',
      `Write the client's id, a colon, and the host's id: ${flag} 1000:2000`,
    );
  });
}

function optionsFrom(directory: string, given: NfsServeFlags): NfsServeOptions {
  return {
    directory,
    ...optional('host', given.host),
    ...optional('path', given.path),
    ...optional('squash', given.squash),
    ...optional('state', given.state),
    ...optional('tlsCert', given.tlsCert),
    ...optional('tlsKey', given.tlsKey),
    ...optional('tlsCa', given.tlsCa),
    ...optionalNumber('port', '--port', given.port, 65_535),
    ...optionalNumber('portmapper', '--portmapper', given.portmapper, 65_535),
    ...optionalNumber('anonUid', '--anon-uid', given.anonUid, maxId),
    ...optionalNumber('anonGid', '--anon-gid', given.anonGid, maxId),
    allow: given.allow ?? [],
    users: parseMappings('--map-uid', given.mapUid),
    groups: parseMappings('--map-gid', given.mapGid),
    privilegedPorts: given.privilegedPorts ?? false,
    readOnly: given.readOnly ?? false,
    async: given.async ?? false,
    tlsConfine: given.tlsConfine ?? [],
    tlsOptional: given.tlsOptional ?? false,
  };
}

function serveDirectory(session: Session, directory: string, given: NfsServeFlags): Promise<number> {
  return session.services.nfsServe(optionsFrom(directory, given), (served) => printServed(session, served));
}

function printServed({ out, services }: Session, served: NfsServed): void {
  for (const note of served.notes) out.warn(note);
  if (out.json) out.value(served);
  else if (out.quiet) out.line(escapeControls(served.uri));
  else printGreeting(out, served, services.program);
}

function printGreeting(out: Session['out'], served: NfsServed, program: string): void {
  const at = served.host.includes(':') ? `[${served.host}]` : served.host;
  out.line(
    `stowage nfs ready: ${escapeControls(served.directory)} is ${escapeControls(served.path)} on ${at}:${served.port}`,
  );
  for (const [what, said] of Object.entries(served.about)) out.line(`  ${what.padEnd(8)} ${escapeControls(said)}`);
  out.line('');
  out.line('Try next:');
  out.line(escapeControls(`  ${shellWord(program)} store add ${served.name} ${shellWord(served.uri)}`));
  out.line('');
}
