/** One right and its reason. */
export interface RbacRule {
  /** The API group. Empty: the core group. */
  readonly group: string;
  readonly resource: string;
  /** Only objects with these names. */
  readonly names?: readonly string[];
  readonly verbs: readonly string[];
  readonly why: string;
  /** Undefined: the rule always applies. */
  readonly when?: keyof typeof conditions;
}

/** The conditions in Helm's syntax, and for the documentation. */
export const conditions = {
  certificateOwn: { helm: 'not .Values.tls.secretName', text: 'Only without `tls.secretName`.' },
  certificateGiven: { helm: '.Values.tls.secretName', text: 'Only with `tls.secretName`.' },
} as const;

export const ownNamespace = 'own';

export interface RbacRole {
  readonly name: string;
  readonly title: string;
  readonly about: string;
  readonly where: 'cluster' | typeof ownNamespace;
  /**
   * The subject is a service account of Stowage, or the subjects in a value of the chart. Without either, no subject
   * has the role by default.
   */
  readonly account?: string;
  readonly value?: string;
  readonly extraLabels?: Readonly<Record<string, string>>;
  readonly rules: readonly RbacRule[];
}

export const [core, storage, stowage, discovery] = ['', 'storage.k8s.io', 'stowage.dev', 'discovery.k8s.io'];
export const getListWatch = ['get', 'list', 'watch'];
export const listWatch = ['list', 'watch'];
