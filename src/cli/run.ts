import type { Writable } from 'node:stream';
import { CommanderError } from 'commander';
import { systemClock } from '#base/clock.ts';
import { errnoOf, isErrno } from '#base/errno.ts';
import { StowageError } from '#core/errors.ts';
import { parseDurationArgument } from './arguments.ts';
import type { StowageCommand } from './command.ts';
import { childrenOf } from './command-tree.ts';
import { findServer, type ServerAddress } from './connection.ts';
import { createClient, type Deadline } from './http.ts';
import type { Io, ProgramServices } from './io.ts';
import { createOutput, type Output, wantsColor } from './output.ts';
import { exitOf, invalid } from './problem.ts';
import { createProgram, type GlobalOptions } from './program.ts';
import { createWaiting } from './progress.ts';
import type { MakeAction, Session } from './session.ts';

/** Runs one command line (without the program's name) and returns its exit status. Never exits the process. */
export async function runCli(argv: readonly string[], io: Io, services: ProgramServices): Promise<number> {
  let status = 0;
  const pipes = watchPipes(io);
  const act: MakeAction =
    (work) =>
    async (...args) => {
      status = (await work(createSession(program, io, services, pipes.outputClosed), ...args)) ?? 0;
    };
  const program = createProgram(services, act);
  configureOutput(program, io, { writeErr: (text) => void io.stderr.write(text) });
  try {
    await program.parseAsync([...argv], { from: 'user' });
  } catch (thrown) {
    status = report(thrown, output(program, io, argv.includes('--json')), intendedCommand(program, argv));
  }
  await Promise.all([flush(io.stdout), flush(io.stderr)]);
  pipes[Symbol.dispose]();
  return status === 0 && pipes.writeError() !== undefined ? 1 : status;
}

/** The parser writes help to standard output. It must not print errors: `report` does. */
function configureOutput(command: StowageCommand, io: Io, to: { writeErr(text: string): void }): void {
  const width = 'columns' in io.stdout && typeof io.stdout.columns === 'number' ? io.stdout.columns : 100;
  command.configureOutput({
    writeOut: (text) => void io.stdout.write(text),
    writeErr: to.writeErr,
    outputError: () => undefined,
    getOutHelpWidth: () => width,
    getErrHelpWidth: () => width,
    getOutHasColors: () => false,
    getErrHasColors: () => false,
  });
  for (const child of command.commands as StowageCommand[]) configureOutput(child, io, to);
}

function output(program: StowageCommand, io: Io, json: boolean): Output {
  const options = program.opts() as GlobalOptions;
  const how = { json: json || options.json === true, quiet: options.quiet === true };
  return createOutput(io, { ...how, color: wantsColor(io, options.color) }, program.rewriteProgramName);
}

function createSession(program: StowageCommand, io: Io, services: ProgramServices, outputClosed: AbortSignal): Session {
  const options = program.opts() as GlobalOptions;
  const out = output(program, io, false);
  const clock = systemClock();
  const deadline: Deadline =
    options.timeout === undefined
      ? { ms: 60_000, explicit: false }
      : { ms: parseDurationArgument(options.timeout), explicit: true };
  // Resolved at the first request: completion and help need no valid server address.
  let found: Promise<ServerAddress> | undefined;
  const find = (): Promise<ServerAddress> =>
    (found ??= services.cluster?.(options) ?? findServer(options, io, out.warn));
  return {
    io,
    out,
    clock,
    services,
    outputClosed,
    client: createClient(find, clock, io.signal, deadline, createWaiting(io, out.quiet, clock)),
    isInteractive: io.isTTY && !out.json && !out.quiet && io.env['TERM'] !== 'dumb',
    isLocalServer:
      services.cluster === undefined &&
      options.url === undefined &&
      (options.socket !== undefined || !io.env['STOWAGE_URL']),
  };
}

function report(thrown: unknown, out: Output, command: string): number {
  if (thrown instanceof CommanderError) {
    // --help and --version end this way too. Commander has already printed the help for a missing command.
    if (thrown.exitCode === 0) return 0;
    if (thrown.code === 'commander.help') return 2;
    return report(usageError(thrown, command), out, command);
  }
  const silent = thrown instanceof StowageError && thrown.reason === 'interrupted' && thrown.action === '';
  if (!silent) out.error(thrown);
  return exitOf(thrown);
}

/** The intended command, as far as it can be recognized, to suggest its --help. */
function intendedCommand(program: StowageCommand, argv: readonly string[]): string {
  const path = [program.name()];
  let command = program;
  for (const word of argv) {
    const next = childrenOf(command).find((child) => child.name() === word || child.aliases().includes(word));
    if (next === undefined) continue;
    path.push(next.name());
    command = next;
  }
  return path.join(' ');
}

/** commander: `error: unknown command 'vol'\n(Did you mean volume?)` */
function usageError(thrown: CommanderError, command: string): StowageError {
  const [first = '', second = ''] = thrown.message.split('\n');
  const suggestion = /^\((Did you mean .*)\)$/.exec(second)?.[1];
  const help = `See: ${command} --help`;
  return invalid(
    first.replace(/^error: /, ''),
    'usage',
    suggestion === undefined ? help : `${suggestion} ${help}`,
    thrown,
  );
}

/**
 * `stowage volume list | head`: a closed pipe is not an error and does not stop the work. All other write errors are reported and change the
 * exit status.
 */
function watchPipes(io: Io): Disposable & { readonly outputClosed: AbortSignal; writeError(): Error | undefined } {
  const closed = new AbortController();
  let writeFailure: Error | undefined;
  const handleWriteError = (error: Error): void => {
    if (!isErrno(error, 'EPIPE', 'ERR_STREAM_DESTROYED') && writeFailure === undefined) {
      writeFailure = error;
      io.stderr.write(`error: cannot write the output (${errnoOf(error) ?? error.message})\n`);
    }
    closed.abort(error);
  };
  const ignore = (): void => undefined;
  io.stdout.on('error', handleWriteError);
  io.stderr.on('error', ignore);
  return {
    outputClosed: closed.signal,
    writeError: () => writeFailure,
    [Symbol.dispose]: () => {
      // Keep a listener: a late error of the pipe must not become an uncaught exception.
      io.stdout.off('error', handleWriteError).on('error', ignore);
    },
  };
}

/** Writes to a pipe are asynchronous and would be lost if the process exited now. */
async function flush(stream: Writable): Promise<void> {
  if (stream.destroyed || !stream.writable) return;
  const { promise, resolve } = Promise.withResolvers<void>();
  stream.write('', () => resolve());
  await promise;
}
