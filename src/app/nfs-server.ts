import process from 'node:process';
import { onAbort } from '#base/aborted.ts';
import { systemClock } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import type { NfsServed, NfsServeOptions } from '#cli/io.ts';
import { knownKeeperUser } from '#clients/data-path/keeper-user.ts';
import { createNfsServer, type NfsServer, type NfsServerOptions } from '#wire/nfs3/server/server.ts';
import { createLog } from './logger.ts';
import { isFromUsers } from './loopback-owner.ts';
import { allAddresses, type NfsPlan, planNfsServer } from './nfs-plan.ts';
import { describeServed } from './nfs-server-description.ts';
import { cannotStart } from './nfs-server-errors.ts';

/**
 * `stowage nfs serve`: runs until SIGINT or SIGTERM. With an IPC channel to its parent it also reports when it is ready, and ends with the
 * parent. Returns the exit status.
 */
export async function runNfsServer(
  options: NfsServeOptions,
  { states, keepers }: { readonly states: string; readonly keepers: string },
  interrupted: AbortSignal,
  ready: (served: NfsServed) => void,
): Promise<number> {
  const { promise: stopRequested, resolve: requestStop } = Promise.withResolvers<void>();
  using _ = onAbort(interrupted, requestStop);
  process.once('SIGTERM', () => requestStop());
  process.once('disconnect', () => requestStop());
  // The parent disconnected while this was loading. Undefined: there is no channel.
  if (process.connected === false) requestStop();
  const plan = await planNfsServer(options, states);
  const server = await startServer(plan, options, keepers);
  ready(await describeServed(plan, options, server));
  // With a callback, since otherwise a failed send to a parent that is gone would end this process.
  process.send?.({ ready: true }, undefined, {}, () => undefined);
  await stopRequested;
  await server.close();
  return 0;
}

async function startServer(plan: NfsPlan, options: NfsServeOptions, keepers: string): Promise<NfsServer> {
  const log = createLog('warn', process.stderr);
  // This machine's data path has a user of its own, and makes requests for all users of root's mounts.
  const uids = (): readonly number[] => [process.geteuid?.() ?? 0, 0, knownKeeperUser(keepers) ?? 0];
  const { directory, state, path, networks, squash, anonymous, tls, port } = plan;
  const { users, groups, readOnly, privilegedPorts, portmapper } = options;
  const about: NfsServerOptions = {
    clock: systemClock(),
    directory,
    state,
    path,
    networks,
    squash,
    anonymous,
    tls,
    users,
    groups,
    readOnly,
    privilegedPorts,
    port,
    confined: options.tlsConfine,
    ...(portmapper === undefined ? {} : { portmap: { port: portmapper } }),
    ...(plan.isOwnOnly ? { mayConnect: (socket) => isFromUsers(uids(), socket) } : {}),
    durable: !options.async,
    ownsProcess: true,
    onError: (what, cause) => log.warn(what, { error: cause }),
  };
  try {
    return await createNfsServer({ ...about, host: plan.host });
  } catch (cause) {
    const hasNoIpv6 = isErrno(cause, 'EAFNOSUPPORT');
    if (hasNoIpv6 && plan.host === allAddresses)
      return await startServer({ ...plan, host: '0.0.0.0' }, options, keepers);
    throw cannotStart(cause, { host: plan.host, port, portmapper });
  }
}
