import type { Clock } from '#base/clock.ts';
import type { Client } from './http.ts';
import type { Io, ProgramServices } from './io.ts';
import type { Output } from './output.ts';

/** The first argument of every command's function. */
export interface Session {
  readonly io: Io;
  readonly client: Client;
  readonly out: Output;
  readonly clock: Clock;
  readonly services: ProgramServices;
  /** Aborted when the reader of the output has closed it: following stops, work does not. */
  readonly outputClosed: AbortSignal;
  /** On a terminal: long work runs in the background of the server, with a progress bar. */
  readonly isInteractive: boolean;
  /** The server runs on this machine, so paths mean the same to both. */
  readonly isLocalServer: boolean;
}

/** Returns the exit status; nothing means success. */
export type CommandWork<A extends unknown[]> = (session: Session, ...args: A) => Promise<number> | Promise<void>;
/** Makes a commander action of a command's function: the session first, then the arguments and options from commander. */
export type MakeAction = <A extends unknown[]>(work: CommandWork<A>) => (...args: A) => Promise<void>;
