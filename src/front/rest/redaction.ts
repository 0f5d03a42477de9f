import { basename } from 'node:path';
import { accessDeniedMessage, isAccessDenied } from '#core/access-denial.ts';
import type { Adoption } from '#core/adoption.ts';
import { type DisclosableError, isForEverybody, redactForUser } from '#core/error-disclosure.ts';
import { errorReason } from '#core/error-reasons.ts';
import { relayed, type StowageError } from '#core/errors.ts';
import type { Inspection, Orphan, StoreCheck } from '#core/model.ts';
import type { StoreView } from '#core/store-view.ts';
import { isAdministrator, type Principal } from './principal.ts';

/** The error as this caller may see it. `how`: how an administrator finds the details. */
export const redactedError = (
  principal: Principal | undefined,
  trouble: DisclosableError,
  how: string,
): DisclosableError => (principal !== undefined && isAdministrator(principal) ? trouble : redactForUser(trouble, how));

/** Hides the store's address and the details of its problem. The network's name stays visible, so that users can name it to the administrator. */
export function redactedView(principal: Principal, view: StoreView): StoreView {
  if (isAdministrator(principal)) return view;
  const { config, problem, pending } = view;
  return {
    ...view,
    config: { ...config, uri: redactedUri(principal, config.uri) },
    problem: problem && redactedProblem(principal, problem, config.name),
    pending: pending && 'a configuration change is pending',
  };
}

function redactedProblem(principal: Principal, problem: StowageError, store: string): StowageError {
  const { code, reason } = problem;
  const { message, action } = redactedError(principal, problem, `with: stowage store show ${store}`);
  return relayed(message, { code, reason, action });
}

/** Hides all but the scheme of a network store's URI. */
export const redactedUri = (principal: Principal, uri: string): string =>
  isAdministrator(principal) ? uri : uri.replace(/^([^:]*:\/\/)[^/].*$/s, '$1…');

/** Keeps which step failed and a reason that everybody may see; hides addresses and paths. */
export function redactedCheck(principal: Principal, name: string, check: StoreCheck): StoreCheck {
  if (isAdministrator(principal)) return check;
  const action = `Ask the administrator, who finds out why with: stowage store check ${name}`;
  return {
    ...check,
    steps: check.steps.map((one) => {
      const { step, ok, reason } = one;
      if (ok) return { step, ok, detail: 'ok' };
      if (reason === undefined) return { step, ok, detail: 'this step failed', action };
      if (isForEverybody(reason)) return one;
      const detail = isAccessDenied({ reason }) ? accessDeniedMessage({ reason }) : errorReason(reason)?.short;
      return { step, ok, detail: detail ?? 'this step failed', action, reason };
    }),
  };
}

/** Hides the path of missing data. */
export const redactedInspection = (principal: Principal, found: Inspection): Inspection =>
  isAdministrator(principal) || found.condition === 'ok' ? found : { ...found, detail: 'its data is missing' };

const orphanDetails = {
  leftover: 'a leftover that is no longer needed',
  'missing-data': 'the volume is recorded, but its data is missing',
  stranger: 'not a volume',
  'unknown-volume': 'created by another Stowage',
  'unreadable-record': 'unreadable record',
  'unrecorded-directory': 'data without a record',
} as const satisfies Record<Orphan['kind'], string>;

/** Keeps the kind and name; hides paths. */
export function redactedOrphan(principal: Principal, orphan: Orphan): Orphan {
  if (isAdministrator(principal)) return orphan;
  const { store, kind, name } = orphan;
  const action = `Ask the administrator, who can see the details with: stowage store orphans ${store}`;
  return { store, kind, action, name: kind === 'leftover' ? basename(name) : name, detail: orphanDetails[kind] };
}

/** Hides why names were skipped: the reasons contain paths. */
export const redactedAdoption = (principal: Principal, { adopted, skipped }: Adoption): Adoption => ({
  adopted,
  skipped: isAdministrator(principal)
    ? skipped
    : skipped.map(({ name }) => ({ name, reason: 'it cannot be adopted, or is already a volume' })),
});

/** The result of an operation, which another caller may have started. */
export const redactedResult = (principal: Principal, kind: string, result: unknown): unknown =>
  kind === 'store.adopt' && result ? redactedAdoption(principal, result as Adoption) : result;
