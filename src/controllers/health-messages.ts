import type { Pod } from '#wire/kube/types.ts';
import type { MountProblem, MountProblemKind } from './mount-problems.ts';
import { restartConsumersAnnotation } from './names.ts';

/** The reasons of the Events, as the CSI external-health-monitor uses them. */
export const healthEventReasons = { unhealthy: 'VolumeConditionAbnormal', healthy: 'VolumeConditionNormal' } as const;
export const healthAction = 'Monitor';

/** The reasons of the conditions on claims and stores. */
export const conditionReasons = {
  dead: 'MountDead',
  unmounted: 'MountGone',
  'client-failing': 'ClientFailing',
  'store-silent': 'StoreSilent',
  repaired: 'RestartNeeded',
} as const satisfies Record<MountProblemKind, string>;

const remountedMessage: string =
  'the mount was lost, and Stowage has remounted it; containers that started before that get errors';

const userActions = {
  dead: 'Stowage repairs it. If that takes longer than a few minutes, ask the administrator to check the agent of the node.',
  unmounted: 'Restart the pod.',
  'client-failing':
    'Stowage repairs it. If that takes longer than a few minutes, ask the administrator to check the agent and the keeper of the node.',
  'store-silent':
    'Reads and writes wait until this is fixed. Ask the administrator to check the store: kubectl get stores',
  repaired: `Restart the pod. With the annotation ${restartConsumersAnnotation}=true on the claim, pods that have a controller are evicted for that.`,
} as const satisfies Record<MountProblemKind, string>;

const adminHint = 'For details: kubectl stowage mounts, and the log of the agent of that node.';

const maxShownNodes = 10;

export function messageOf(
  problems: readonly MountProblem[],
  audience: 'for users' | 'for administrators' = 'for users',
): string {
  const [worst] = problems;
  if (worst === undefined) return '';
  const nodes = [...new Set(problems.filter(({ kind }) => kind === worst.kind).map(({ node }) => node))].sort();
  const more = nodes.length > maxShownNodes ? ` and ${nodes.length - maxShownNodes} more` : '';
  const situation = `On ${nodes.slice(0, maxShownNodes).join(', ')}${more}: ${descriptionOf(worst)}.`;
  return audience === 'for users' ? `${situation} ${userActions[worst.kind]}` : `${situation} ${adminHint}`;
}

export const claimNote = (message: string | undefined): string => message ?? 'The volume is healthy again.';

export function podNote(problem: MountProblem | undefined, pod: Pod | undefined, claim: string | undefined): string {
  const volume = claim === undefined ? 'A volume of the pod' : `The volume of claim '${claim}'`;
  if (problem === undefined) return `${volume} is healthy again.`;
  const hasNoController = pod?.metadata.ownerReferences?.some(({ controller }) => controller === true) !== true;
  const advice =
    hasNoController && problem.kind === 'repaired' ? 'Delete the pod and create it again.' : userActions[problem.kind];
  return `${volume} is unhealthy on ${problem.node}: ${descriptionOf(problem)}. ${advice}`;
}

const descriptionOf = ({ kind, detail }: MountProblem): string => (kind === 'repaired' ? remountedMessage : detail);
