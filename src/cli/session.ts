import type { Clock } from '#base/clock.ts';
import type { Client } from './http.ts';
import type { Io, ProgramServices } from './io.ts';
import type { Output } from './output.ts';

/** What every command gets. */
export interface Session {
  readonly io: Io;
  readonly client: Client;
  readonly out: Output;
  readonly clock: Clock;
  readonly services: ProgramServices;
  /** Ends when nobody reads our output any more: following stops, work does not. */
  readonly outputClosed: AbortSignal;
  /** Somebody watches: long work runs in the background of the server and is shown as it goes. */
  readonly isInteractive: boolean;
  /** The server runs on this machine, under its paths. */
  readonly isLocalServer: boolean;
}

/** The exit status; nothing means success. */
export type CommandWork<A extends unknown[]> = (session: Session, ...args: A) => Promise<number> | Promise<void>;
/** Makes a command's work an action of the parser: session first, then the arguments and options commander gives. */
export type MakeAction = <A extends unknown[]>(work: CommandWork<A>) => (...args: A) => Promise<void>;
