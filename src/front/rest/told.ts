import { basename } from 'node:path';
import type { Adoption } from '#core/adoption.ts';
import { type ErrorCode, errorCodes, StowageError } from '#core/errors.ts';
import type { Inspection, Orphan, StoreCheck } from '#core/model.ts';
import type { StoreView } from '#core/stores.ts';
import { harmlessReasons } from './harmless-reasons.ts';
import { isAdministrator, type Principal } from './principal.ts';

/** What went wrong, in whatever shape it is passed on. */
interface Trouble {
  readonly code: string;
  readonly reason: string;
  readonly message: string;
  readonly action: string;
}

const inShort = {
  busy: 'something else is at work there',
  canceled: 'it was cancelled',
  conflict: 'the store cannot use the place it was given',
  deadline: 'the store did not answer in time',
  denied: 'the store does not let Stowage do this',
  exhausted: 'no room is left in the store',
  exists: 'something is there already that is no volume',
  'in-use': 'it is in use',
  internal: 'Stowage failed to do this',
  invalid: 'the store cannot use the place it was given',
  'not-found': 'something that is needed for this is missing',
  'out-of-range': 'the store cannot do this',
  stale: 'it has changed meanwhile',
  unauthenticated: 'this needs a token',
  unavailable: 'the store cannot be used at the moment',
  unsupported: 'the store cannot do this',
} as const satisfies Record<ErrorCode, string>;

/**
 * What somebody is told of it. How a store is reached and what else is there is for the administrator alone; to others it
 * is said in short, with how the administrator finds the whole.
 */
export function toldTo(principal: Principal | undefined, trouble: Trouble, how: string): Trouble {
  const { code, reason } = trouble;
  if (harmlessReasons.has(reason) || (principal !== undefined && isAdministrator(principal))) return trouble;
  const ask = `sk the administrator, who finds out why ${how}`;
  return {
    ...{ code, reason },
    message: isErrorCode(code) ? inShort[code] : inShort.internal,
    action: isErrorCode(code) && errorCodes[code].retry ? `Try again in a while. If it persists, a${ask}` : `A${ask}`,
  };
}

const isErrorCode = (code: string): code is ErrorCode => Object.hasOwn(errorCodes, code);

/** Where a store is, and what is wrong with it, as far as it concerns them. */
export function viewFor(principal: Principal, view: StoreView): StoreView {
  if (isAdministrator(principal)) return view;
  const { config, problem, pending } = view;
  const { network: _where, ...options } = config.options;
  return {
    ...view,
    config: { ...config, uri: uriFor(principal, config.uri), options },
    problem: problem && problemFor(principal, problem, config.name),
    pending: pending && 'a change of its configuration waits',
  };
}

function problemFor(principal: Principal, problem: StowageError, store: string): StowageError {
  const { code, reason } = problem;
  const { message, action } = toldTo(principal, problem, `with: stowage store show ${store}`);
  return new StowageError(message, { code, reason, action });
}

/** Of a store on a server only the kind. */
export const uriFor = (principal: Principal, uri: string): string =>
  isAdministrator(principal) ? uri : uri.replace(/^([^:]*:\/\/)[^/].*$/s, '$1…');

/** Which step failed, and nothing of where. */
export function checkFor(principal: Principal, name: string, check: StoreCheck): StoreCheck {
  if (isAdministrator(principal)) return check;
  const action = `Ask the administrator, who finds out why with: stowage store check ${name}`;
  return {
    ...check,
    steps: check.steps.map(({ step, ok }) =>
      ok ? { step, ok, detail: 'fine' } : { step, ok, detail: 'this step failed', action },
    ),
  };
}

/** What is missing where. */
export const inspectionFor = (principal: Principal, found: Inspection): Inspection =>
  isAdministrator(principal) || found.condition === 'ok' ? found : { ...found, detail: 'its data are not there' };

const orphans = {
  leftover: 'something that is not needed any more was left behind',
  'missing-data': 'the volume is recorded, but its data are not there',
  stranger: 'it cannot be a volume',
  'unknown-volume': 'another Stowage made it',
  'unreadable-record': 'its record cannot be read',
  'unrecorded-directory': 'data without a record',
} as const satisfies Record<Orphan['kind'], string>;

/** What it is, and nothing of where. */
export function orphanFor(principal: Principal, orphan: Orphan): Orphan {
  if (isAdministrator(principal)) return orphan;
  const { store, kind, name } = orphan;
  const action = `Ask the administrator, who finds out more with: stowage store orphans ${store}`;
  return { ...{ store, kind, action }, name: kind === 'leftover' ? basename(name) : name, detail: orphans[kind] };
}

/** Not why the rest was left out: the reasons name paths. */
export const adoptionFor = (principal: Principal, { adopted, skipped }: Adoption): Adoption => ({
  adopted,
  skipped: isAdministrator(principal)
    ? skipped
    : skipped.map(({ name }) => ({ name, reason: 'it cannot be taken in as it is, or is a volume already' })),
});

/** What came of an operation that perhaps somebody else began. */
export const resultFor = (principal: Principal, kind: string, result: unknown): unknown =>
  kind === 'store.adopt' && result ? adoptionFor(principal, result as Adoption) : result;
