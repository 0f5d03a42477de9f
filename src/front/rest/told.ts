import { type ErrorCode, errorCodes, StowageError } from '#core/errors.ts';
import type { Inspection, StoreCheck } from '#core/model.ts';
import type { StoreView } from '#core/stores.ts';
import { isAdministrator, type Principal } from './principal.ts';

/** What went wrong, in whatever shape it is passed on. */
interface Trouble {
  readonly code: string;
  readonly reason: string;
  readonly message: string;
  readonly action: string;
}

/** About the place a store has, and what is beside it there: servers, exports, paths, other stores. */
const aboutPlaces: ReadonlySet<string> = new Set([
  ...['layout-differs', 'record-unreadable', 'store-cannot-move', 'store-damaged', 'store-file-system-read-only'],
  ...[
    'store-full',
    'store-identity',
    'store-io-error',
    'store-local-elsewhere',
    'store-lock-irregular',
    'store-locked',
  ],
  ...['store-overlaps', 'store-permission', 'store-place-taken', 'store-quota', 'store-records-foreign'],
  ...['store-root-changed', 'store-root-missing', 'store-root-not-directory', 'store-shared-elsewhere'],
]);

const inShort: Readonly<Record<string, string>> = {
  deadline: 'the store did not answer in time',
  denied: 'the store does not let Stowage do this',
  exhausted: 'no room is left in the store',
  unavailable: 'the store cannot be used at the moment',
  unsupported: 'the store cannot do this',
};

/**
 * What somebody is told of it. How a store is reached and what else is there is for the administrator alone; to others it
 * is said in short, with how the administrator finds the whole.
 */
export function toldTo(principal: Principal | undefined, trouble: Trouble, how: string): Trouble {
  const { code, reason } = trouble;
  const isHarmless = !reason.startsWith('nfs-') && !aboutPlaces.has(reason);
  if (isHarmless || (principal !== undefined && isAdministrator(principal))) return trouble;
  const ask = `sk the administrator, who finds out why ${how}`;
  return {
    ...{ code, reason },
    message: inShort[code] ?? 'the store cannot use the place it was given',
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
