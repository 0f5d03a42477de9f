import { resolve } from 'node:path';
import process from 'node:process';
import { onAbort } from '#base/aborted.ts';
import { systemClock } from '#base/clock.ts';
import type { Folders } from '#base/folders.ts';
import type { Log } from '#base/log.ts';
import { socketOptionFor } from '#cli/connection.ts';
import type { UpOptions } from '#cli/io.ts';
import { shellWord } from '#cli/text.ts';
import { type KeeperPlace, keeperPlaces } from '#clients/data-path/keeper-placement.ts';
import { StowageError, stowageError } from '#core/errors.ts';
import { type CsiSettings, csiSettings } from './csi.ts';
import { isListening } from './engines.ts';
import { createLog, levelFrom } from './logger.ts';
import { releaseMemoryWhenIdle } from './memory-release.ts';
import { servingFlags } from './serving-flags.ts';
import { type Running, startUp, type UpSettings } from './up.ts';

async function startMessage(running: Running, program: string, seconds: number): Promise<string> {
  const { stores, mounter } = running.core;
  const view = stores.defaultName === undefined ? undefined : stores.view(stores.defaultName);
  const socket = running.addresses.find((address) => address.startsWith('unix:'))?.slice('unix:'.length) ?? '';
  const http = running.addresses.find((address) => address.startsWith('http:'));
  const lines = [
    `stowage ready in ${seconds.toFixed(1)} s`,
    `  socket   ${socket}`,
    http === undefined ? '  http     none' : `  http     ${http} (token in ${running.state.tokenFile})`,
    `  default  ${view === undefined ? 'no store' : `${view.config.name}  ${view.config.uri}`}`,
  ];
  lines.push(...(await engineLines(running)));
  if (running.csi.sockets.length > 0) lines.push(`  csi      ${running.csi.sockets.join(', ')}`);
  const { nfs } = running;
  if (nfs !== undefined) lines.push(`  nfs      ${nfs.storeName}  ${nfs.uri}  (files in ${nfs.exported})`);
  for (const { config, problem } of stores.list())
    if (problem) lines.push(`  warning  store ${config.name}: ${problem.message}. ${problem.action}`);
  if (mounter.unable !== undefined)
    lines.push(`  note     volumes cannot be mounted: ${mounter.unable.why}. ${mounter.unable.action}`);
  if (view === undefined)
    return `${[...lines, '', ...tryNext(program, socket, ['store add NAME URI', 'doctor'])].join('\n')}\n`;
  const onNetwork = nfs === undefined ? [] : [`volume create ${nfs.storeName}/shared`];
  const next = ['volume create photos --size 1G', ...onNetwork, 'volume list', 'doctor'];
  return `${[...lines, '', ...tryNext(program, socket, next)].join('\n')}\n`;
}

function tryNext(program: string, socket: string, commands: readonly string[]): readonly string[] {
  const call = shellWord(program) + socketOptionFor(socket, process.env);
  return ['Try next:', ...commands.map((line) => `  ${call} ${line}`), ''];
}

async function engineLines({ plugins, engines }: Running): Promise<readonly string[]> {
  const followed = engines.map(async ({ kind, socket }) => {
    const isThere = await isListening(socket);
    return `  engine   ${kind} at ${socket}${isThere ? '' : ' (not responding; Stowage finds its containers when it responds)'}`;
  });
  const served = plugins.why === undefined ? plugins.sockets.join(', ') : `none (${plugins.why})`;
  return [`  plugins  ${served}`, ...(await Promise.all(followed))];
}

function thisProgram(): readonly [string, ...string[]] {
  const [node = process.execPath, main = ''] = process.argv;
  return [node, ...servingFlags(process.execArgv), main];
}

const pathIn = (given: string | undefined): string | undefined =>
  given === undefined || given === 'none' ? given : resolve(given);

/** A server with a state folder of its own is a second server: the machine's engines belong to the first. */
function engineDiscovery(options: UpOptions): true | string {
  if (process.getuid?.() !== 0) return 'serving container engines requires root';
  if (process.platform !== 'linux') return 'serving container engines requires Linux';
  return options.state === undefined ? true : 'disabled by --state; pass --plugins DIR to enable';
}

function keeperPlaceFrom(text: string | undefined): KeeperPlace | undefined {
  if (text === undefined || text === '') return undefined;
  const found = keeperPlaces.find((one) => one === text);
  if (found !== undefined) return found;
  throw new StowageError(`'${text}' is not a valid location for data paths`, {
    code: 'invalid',
    reason: 'keeper-place-unknown',
    action: `Set STOWAGE_KEEPERS to one of: ${keeperPlaces.join(', ')}; or unset it.`,
  });
}

interface ReloadQueue {
  readonly ask: () => void;
  /** Starts to reload; does so at once if it was requested during the start. */
  begin(running: Running): void;
  /** Waits for the reload in progress; later requests are ignored. */
  end(): Promise<void>;
}

function createReloadQueue(log: Log): ReloadQueue {
  let isRequested = false;
  let target: Running | undefined;
  let work: Promise<void> = Promise.resolve();
  const reload = async (): Promise<void> => {
    try {
      await target?.reload();
      if (target !== undefined) log.info('configuration reloaded');
    } catch (thrown) {
      const { message, action } = stowageError(thrown);
      log.error('failed to reload: keeping the previous configuration', { why: message, action });
    }
  };
  return {
    ask: () => {
      isRequested = target === undefined;
      work = work.then(reload);
    },
    begin: (running) => {
      target = running;
      if (isRequested) work = work.then(reload);
    },
    end: async () => {
      target = undefined;
      await work;
    },
  };
}

/** Services that run in addition to the server. */
export interface ServerExtension {
  readonly cluster: UpSettings['cluster'];
  readonly podUsers: CsiSettings['podUsers'];
  /** Called when the server is ready; the result is disposed of before the server stops. */
  started(running: Running): AsyncDisposable;
}

/** `stowage up`: runs until SIGINT or SIGTERM, and reloads its configuration on SIGHUP. Returns the exit status. */
export async function runServer(
  options: UpOptions,
  folders: Folders,
  program: string,
  interrupted: AbortSignal,
  extension?: ServerExtension,
): Promise<number> {
  const began = performance.now();
  const log = createLog(levelFrom(options.logLevel), process.stderr);
  using _memory = releaseMemoryWhenIdle(systemClock());
  const stopping = new AbortController();
  const { promise: stopRequested, resolve: requestStop } = Promise.withResolvers<void>();
  using _interrupt = onAbort(interrupted, requestStop);
  // Not `once`: an engine may send SIGTERM again while it waits for the container.
  process.on('SIGTERM', () => requestStop());
  // Registered before the start, since without a handler SIGHUP ends the process.
  const reloading = createReloadQueue(log);
  process.on('SIGHUP', reloading.ask);
  const csi = csiSettings(options);
  const running = await startUp({
    folders,
    config: options.config,
    listen: options.listen,
    plugins: pathIn(options.plugins),
    csi: csi === undefined ? undefined : { ...csi, podUsers: extension?.podUsers },
    nodeName: options.nodeName,
    engineSockets: { docker: pathIn(options.dockerSocket), podman: pathIn(options.podmanSocket) },
    discoverEngines: engineDiscovery(options),
    bare: options.bare === true,
    keeperPlace: keeperPlaceFrom(process.env['STOWAGE_KEEPERS']),
    log,
    signal: stopping.signal,
    cluster: extension?.cluster,
    ...(options.nfs === true ? { nfs: { program: thisProgram(), port: options.nfsPort } } : {}),
  });
  reloading.begin(running);
  const extensionServices = extension?.started(running);
  process.stdout.write(await startMessage(running, program, (performance.now() - began) / 1000));
  await stopRequested;
  await extensionServices?.[Symbol.asyncDispose]();
  await reloading.end();
  process.stderr.write('stowage stopping\n');
  const leftMounts = await running.stop();
  stopping.abort();
  for (const mount of leftMounts) process.stderr.write(`still in use, left mounted: ${mount}\n`);
  process.stderr.write(
    leftMounts.length === 0 ? 'stowage stopped\n' : `stowage stopped; ${leftMounts.length} still mounted and working\n`,
  );
  return 0;
}
