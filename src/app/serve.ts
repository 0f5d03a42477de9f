import process from 'node:process';
import type { Folders } from '#base/folders.ts';
import type { Log } from '#base/log.ts';
import { wayTo } from '#cli/connection.ts';
import type { UpOptions } from '#cli/io.ts';
import { shellWord } from '#cli/text.ts';
import { StowageError, stowageError } from '#core/errors.ts';
import { createLog, type LogLevel, logLevels } from './logger.ts';
import { servingFlags } from './serving-flags.ts';
import { type Running, startUp } from './up.ts';

function levelFrom(text: string | undefined): LogLevel {
  const level = logLevels.find((known) => known === (text ?? 'warn'));
  if (level !== undefined) return level;
  throw new StowageError(`'${text}' is not a log level`, {
    code: 'invalid',
    reason: 'log-level-invalid',
    action: `Use one of: ${logLevels.join(', ')}`,
  });
}

function greeting(running: Running, program: string, seconds: number): string {
  const { stores, mounter } = running.engine;
  const view = stores.defaultName === undefined ? undefined : stores.view(stores.defaultName);
  const socket = running.addresses.find((address) => address.startsWith('unix:'))?.slice('unix:'.length) ?? '';
  const http = running.addresses.find((address) => address.startsWith('http:'));
  const lines = [
    `stowage ready in ${seconds.toFixed(1)} s`,
    `  socket   ${socket}`,
    http === undefined ? '  http     none' : `  http     ${http} (token in ${running.state.tokenFile})`,
    `  default  ${view === undefined ? 'no store' : `${view.config.name}  ${view.config.uri}`}`,
  ];
  const { nfs } = running;
  if (nfs !== undefined) lines.push(`  nfs      ${nfs.storeName}  ${nfs.uri}  (files in ${nfs.exported})`);
  for (const { config, problem } of stores.list())
    if (problem) lines.push(`  trouble  store ${config.name}: ${problem.message}. ${problem.action}`);
  if (mounter.unable !== undefined)
    lines.push(`  note     volumes cannot be mounted: ${mounter.unable.why}. ${mounter.unable.action}`);
  const onNetwork = nfs === undefined ? [] : [`volume create ${nfs.storeName}/shared`];
  const call = shellWord(program) + wayTo(socket, process.env);
  lines.push(
    '',
    'Try next:',
    ...['volume create photos --size 1G', ...onNetwork, 'volume list', 'doctor'].map((line) => `  ${call} ${line}`),
    '',
  );
  return `${lines.join('\n')}\n`;
}

function thisProgram(): readonly [string, ...string[]] {
  const [node = process.execPath, main = ''] = process.argv;
  return [node, ...servingFlags(process.execArgv), main];
}

interface Reloading {
  readonly ask: () => void;
  /** What was asked for while it started is done now. */
  begin(running: Running): void;
  /** Waits for the one that runs; what is asked for from now on is ignored. */
  end(): Promise<void>;
}

function createReloading(log: Log): Reloading {
  let asked = false;
  let target: Running | undefined;
  let work: Promise<void> = Promise.resolve();
  const reload = async (): Promise<void> => {
    try {
      await target?.reload();
      if (target !== undefined) log.info('configuration read again');
    } catch (thrown) {
      const { message, action } = stowageError(thrown);
      log.error('the configuration stays as it was', { why: message, action });
    }
  };
  return {
    ask: () => {
      asked = target === undefined;
      work = work.then(reload);
    },
    begin: (running) => {
      target = running;
      if (asked) work = work.then(reload);
    },
    end: async () => {
      target = undefined;
      await work;
    },
  };
}

/** `stowage up`: runs until SIGINT or SIGTERM, reads its configuration again on SIGHUP. Gives the exit status. */
export async function runServer(
  options: UpOptions,
  folders: Folders,
  program: string,
  interrupted: AbortSignal,
): Promise<number> {
  const began = performance.now();
  const log = createLog(levelFrom(options.logLevel), process.stderr);
  const stopping = new AbortController();
  const { promise: told, resolve: tell } = Promise.withResolvers<void>();
  interrupted.addEventListener('abort', () => tell(), { once: true });
  process.once('SIGTERM', () => tell());
  // From the first moment on, since without a handler the signal ends the process.
  const reloading = createReloading(log);
  process.on('SIGHUP', reloading.ask);
  const running = await startUp({
    folders,
    config: options.config,
    listen: options.listen,
    log,
    signal: stopping.signal,
    ...(options.nfs === true ? { nfs: { program: thisProgram(), port: options.nfsPort } } : {}),
  });
  reloading.begin(running);
  process.stdout.write(greeting(running, program, (performance.now() - began) / 1000));
  await told;
  await reloading.end();
  process.stderr.write('stowage stopping\n');
  const left = await running.stop();
  stopping.abort();
  for (const mount of left) process.stderr.write(`still in use and left mounted: ${mount}\n`);
  process.stderr.write(
    left.length === 0 ? 'stowage stopped\n' : `stowage stopped; ${left.length} still mounted, which keep working\n`,
  );
  return 0;
}
