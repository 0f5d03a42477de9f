import { systemClock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { runChecks } from '#clients/doctor.ts';
import type { FindingJson } from '#front/rest/schemas.ts';

export async function examineMachine(state: string, scope: Scope): Promise<readonly FindingJson[]> {
  const findings = await runChecks({ clock: systemClock(), stateFolder: state }, scope);
  return findings.map(({ check, ok, detail, fix }) => ({ check, ok, detail, fix: fix ?? null }));
}
